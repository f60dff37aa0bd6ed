"""verl's own writers give what the fixture has, and winnow reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
from make_log import PROMPTS, ROLLOUTS, STEPS, write

from winnow.state.logbook import read_metrics

FIXTURE = Path(__file__).parents[1] / "fixtures" / "verl_run"

pytestmark = pytest.mark.filterwarnings("ignore")  # of verl and of what it imports


def test_the_installed_verl_writes_the_fixture(tmp_path, monkeypatch):
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", "")
    write(tmp_path / "run")
    names = ["log.jsonl", *(f"rollouts/{step}.jsonl" for step in range(1, STEPS + 1))]
    for name in names[1:]:
        assert (tmp_path / "run" / name).read_bytes() == (FIXTURE / name).read_bytes()
    rows = read_metrics(tmp_path / "run")
    assert rows == read_metrics(FIXTURE)
    assert all(row["budget/rollouts"] == PROMPTS * ROLLOUTS for row in rows[:STEPS])
