"""rollout.ahead = 1 with the native engine in a process of its own: the same bits as with one that waits its turn."""

from __future__ import annotations

import pytest
from kill_points import chaos

import winnow
from winnow.state.logbook import read_metrics


@pytest.mark.slow  # each run starts a process that imports torch
@pytest.mark.timeout(600)
def test_two_runs_have_the_same_bits_and_the_engine_works_beside_the_updates(smallest, tmp_path, monkeypatch):
    monkeypatch.setattr(chaos, "STEPS", 4)
    monkeypatch.setattr(chaos, "CLOCK", (*chaos.CLOCK, "ahead/seconds"))
    rollout = {"ahead": 1, "engine": {"use": "native", "process": "own", "threads": 1}}
    config = smallest(steps=4, rollout=rollout, correction="token_truncate", checkpoint={"every": 1, "keep_last": 1})
    left = []
    for name in ("one", "two"):
        winnow.train(**{**config, "output": str(tmp_path / name)}, progress=False)
        left.append(chaos.what_is_left(tmp_path / name))
    assert left[0] == left[1]
    beside = [row for row in read_metrics(tmp_path / "one") if "budget/mismatch_tokens" in row]
    assert [row["step"] for row in beside] == [0, 4]
    assert all(row["policy/logprob_gap_mean"] < 1e-5 for row in beside)
    assert all(row["policy/effective_sample_size"] == pytest.approx(1.0, abs=1e-4) for row in beside)
