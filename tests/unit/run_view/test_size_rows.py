"""Decisions as rows and as lines: each with what came of it in the window after it."""

import json

import pytest

from winnow.errors import DataError
from winnow.run_view.decisions import decision_lines, decisions
from winnow.state.decisions import DECISIONS

SIZES = ("rollouts", "kept", "prompts")


def sizes(*numbers):
    return dict(zip(SIZES, numbers, strict=True))


ROWS = [
    {
        "step": 10, "jump": True, "before": sizes(16, 16, 4), "chosen": sizes(8, 2, 8), "noise": {"factor": 0.5},
        "outcome": None, "seconds": 0.25, "spent": {"steps": 10, "seconds": 20.0, "tokens": 900.0},
        "expected": {
            "gain": 1.5, "least_gain": 1.25, "seconds": 2.0, "tokens": 90.0, "flat": 0.25, "signal_share": 0.5,
        },
    },
    {
        "step": 20, "jump": False, "before": sizes(8, 2, 8), "chosen": sizes(8, 2, 8), "noise": {},
        "outcome": {"seconds": [2.0, 3.0], "tokens": [90.0, 100.0], "flat": [0.25, 0.5], "signal_share": [0.5, None]},
        "expected": {"gain": 1.0, "least_gain": 1.0, "seconds": 3.0, "tokens": 100.0, "flat": 0.5, "signal_share": 0.4},
    },
    {"step": 30, "jump": False, "before": sizes(8, 2, 8), "chosen": sizes(8, 2, 8), "reason": "all rewards are equal"},
]  # fmt: skip


@pytest.fixture
def run(tmp_path):
    (tmp_path / DECISIONS).write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def test_a_decision_has_what_came_of_it(run):
    first, second, third = decisions(run)
    assert (first["step"], first["before"]) == (10, "n = 16, m = all, 4 prompts")
    assert first["after"] == "n = 8, m = 2, 8 prompts"
    assert (first["jump"], first["gain"], first["least_gain"], first["noise"]) == (True, 1.5, 1.25, 0.5)
    assert first["came"] == {
        "seconds": [2.0, 3.0], "tokens": [90.0, 100.0], "flat": [0.25, 0.5], "signal_share": [0.5, None],
    }  # fmt: skip
    assert (first["planning"], second["planning"]) == (0.25 / 20, None)
    assert second["came"]["seconds"] == [3.0, None]  # the window after it had no signal, so nothing was compared
    assert (third["reason"], third["gain"], third["came"]["flat"]) == ("all rewards are equal", None, [None, None])


def test_a_line_has_numbers_of_the_decision(run):
    first, last, others = decision_lines(run)  # the second of three keeps the sizes
    for text in ("step 10", "n = 16, m = all, 4 prompts", "n = 8, m = 2, 8 prompts", "1.50", "50.0%", "25.0%", "1.25%"):
        assert text in first
    assert "become" not in last
    assert "equal" in last
    assert others.startswith("1 ")


def test_a_run_of_fixed_sizes_has_none(tmp_path):
    assert decisions(tmp_path) == []
    assert list(decision_lines(tmp_path)) == []


@pytest.mark.parametrize("row", [{"step": 1}, {"step": 1, "before": 3, "chosen": {}}, {**ROWS[0], "expected": [1]}])
def test_a_row_that_is_no_decision_is_an_error(run, row):
    (run / DECISIONS).write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError):
        decisions(run)
