"""The rows of decisions.jsonl: what stays after an interruption, and what a resume takes."""

import pytest

from winnow.errors import DataError
from winnow.state.decisions import DECISIONS, DecisionLog, read_decisions


def made(folder, steps=(2, 4, 6)):
    log = DecisionLog(folder)
    for step in steps:
        log.append(step, {"chosen": {"rollouts": step, "kept": 2, "prompts": 1}})
    return log


def test_a_decision_is_read_by_its_step(tmp_path):
    assert read_decisions(tmp_path) == {}
    made(tmp_path)
    assert read_decisions(tmp_path)[4] == {"step": 4, "chosen": {"rollouts": 4, "kept": 2, "prompts": 1}}
    assert list(read_decisions(tmp_path)) == [2, 4, 6]


def test_a_resume_keeps_later_decisions_and_removes_an_incomplete_row(tmp_path):
    log = made(tmp_path)
    with (tmp_path / DECISIONS).open("ab") as file:
        file.write(b'{"step": 8, "chos')
    assert list(read_decisions(tmp_path)) == [2, 4, 6]
    again = DecisionLog(tmp_path, log.sync(2))
    again.cut_from(None)
    again.append(8, {"chosen": {"rollouts": 8, "kept": 2, "prompts": 1}})
    assert list(read_decisions(tmp_path)) == [2, 4, 6, 8]


def test_a_changed_run_decides_anew_also_before_the_mark(tmp_path):
    """The mark of a resumed run is behind the decisions of steps that it has not taken again."""
    log = DecisionLog(tmp_path, made(tmp_path).sync(6))
    log.cut_from(4)
    assert list(read_decisions(tmp_path)) == [2]
    DecisionLog(tmp_path / "none").cut_from(4)


def test_a_log_that_lost_its_rows_is_noticed(tmp_path):
    mark = made(tmp_path).sync(8)
    assert DecisionLog(tmp_path, mark).log.lost() is None
    (tmp_path / DECISIONS).write_bytes(b"")
    assert DecisionLog(tmp_path, mark).log.lost() is not None


def test_a_mark_has_no_decisions_of_steps_that_a_resumed_run_has_not_taken_again(tmp_path):
    """Else a resume that decides anew would remove rows that the next resume requires."""
    resumed = DecisionLog(tmp_path, made(tmp_path).sync(2))  # a row of step 2 is made after the checkpoint of step 2
    mark = resumed.sync(4)
    DecisionLog(tmp_path, mark).cut_from(4)
    assert DecisionLog(tmp_path, mark).log.lost() is None
    assert list(read_decisions(tmp_path)) == [2]
    assert DecisionLog(tmp_path / "none").sync(4) is None


def test_a_damaged_row_is_named(tmp_path):
    made(tmp_path)
    (tmp_path / DECISIONS).write_bytes(b"nothing\n")
    with pytest.raises(DataError, match="line 1"):
        read_decisions(tmp_path)


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"chosen": 4},
        {"chosen": {"rollouts": 4, "kept": 2}},
        {"chosen": {"rollouts": 4, "kept": 2, "prompts": "1"}},
        {"chosen": {"rollouts": 4, "kept": 2, "prompts": True}},
        {"chosen": {"rollouts": 4, "kept": 2, "prompts": 1, "ranks": 1}},
    ],
)
def test_a_row_without_sizes_is_named(tmp_path, row):
    made(tmp_path).append(8, row)
    with pytest.raises(DataError, match="line 4"):
        read_decisions(tmp_path)
