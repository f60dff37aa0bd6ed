"""A resume that is interrupted before its first step."""

from __future__ import annotations

import json

import pytest

import winnow
from winnow.state.logbook import Logbook


def test_a_resume_with_changed_evaluations_evaluates_anew_if_it_was_interrupted_once(smallest, tmp_path, monkeypatch):
    """A resume sees no change any more if one that was interrupted while it cut the logs has saved its settings."""
    changed, truncate_from = smallest(evaluate={"problems": 3}), Logbook.truncate_from

    def interrupted(*arguments, **named):
        monkeypatch.setattr(Logbook, "truncate_from", truncate_from)
        raise KeyboardInterrupt

    winnow.train(**smallest(), progress=False)
    monkeypatch.setattr(Logbook, "truncate_from", interrupted)
    with pytest.raises(KeyboardInterrupt):
        winnow.train(**changed, resume=True, progress=False)
    winnow.train(**changed, resume=True, progress=False)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    first, *_, last = rows
    assert (first["step"], last["step"]) == (0, 2)
    assert last["budget/evaluation_prompt_tokens"] > first["budget/evaluation_prompt_tokens"], "3 problems instead of 2"
