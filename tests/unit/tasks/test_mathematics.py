"""The benchmarks for evaluation only, from files with either field names."""

from __future__ import annotations

import json

import pytest

from refusals import refused
from winnow.config import Config
from winnow.errors import ConfigError, DataError
from winnow.registry import members
from winnow.tasks.mathematics import aime24, amc23, minerva_math, olympiad_bench


def write(file, *rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_a_worked_solution_is_reduced_to_its_last_box(tmp_path):
    path = write(
        tmp_path / "minerva_math.jsonl",
        {"problem": "How far?", "answer": r"First \boxed{1}, then \boxed{\frac{3}{2}} \mathrm{~m}.", "idx": 0},
        {"question": "How near?", "answer": "7"},
    )
    first, second = minerva_math("test", path=path)
    assert (first.question, first.answer, first.meta["idx"]) == ("How far?", r"\frac{3}{2}", 0)
    assert (second.question, second.answer) == ("How near?", "7")
    assert minerva_math("test", path=str(tmp_path)) == [first, second], "a folder holds the file by the task's name"


def test_tolerance_and_unit_stay_with_the_problem(tmp_path):
    row = {"problem": "How many?", "answer": ["2", "3"], "error": "1e-1", "unit": "km", "context": None}
    other = {"question": "And then?", "final_answer": ["4"], "context": "Given a circle."}
    first, second = olympiad_bench("test", path=write(tmp_path / "x.jsonl", row, other))
    assert (first.answer, first.meta["error"], first.meta["unit"]) == (["2", "3"], "1e-1", "km")
    assert (second.question, second.answer) == ("Given a circle.\n\nAnd then?", ["4"])


@pytest.mark.parametrize("task", [minerva_math, olympiad_bench, aime24, amc23])
def test_only_test_problems_are_there(task, tmp_path):
    path = write(tmp_path / "x.jsonl", {"problem": "1 + 1?", "answer": "2"})
    assert [problem.task for problem in task("test", path=path)] == [task.__name__]
    with refused(ConfigError, task.__name__, "train", "'test'", code="config.unsupported"):
        task("train", path=path)


def test_a_record_without_an_answer_is_named(tmp_path):
    path = write(tmp_path / "x.jsonl", {"problem": "1 + 1?", "answer": "2"}, {"problem": "2 + 2?"})
    with refused(DataError, f"{path}:2", "'answer'", code="data.malformed"):
        aime24("test", path=path)


def test_the_declared_evaluation_of_a_task_is_a_configuration():
    declared = {name: entry.traits.evaluation for name, entry in members("task").items() if entry.traits.evaluation}
    assert {"gsm8k", "math", "math500", "minerva_math", "olympiad_bench", "aime24", "amc23"} <= set(declared)
    for sections in declared.values():
        assert set(sections) <= {"prompt", "rollout", "reward"}
        assert set(sections.get("rollout", {})) <= {"max_new_tokens", "stop"}
        Config.model_validate(dict(sections))
