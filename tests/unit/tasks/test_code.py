"""Programming problems: the three forms of a file, and the procedural ones."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from refusals import refused
from winnow.errors import ConfigError, DataError
from winnow.records import Problem
from winnow.tasks.code import code, programs
from winnow.tasks.problems import SPLITS


def folder(tmp_path: Path, *rows: dict[str, Any]) -> str:
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(tmp_path)


def only(tmp_path: Path, row: dict[str, Any], **options: Any) -> Problem:
    (problem,) = code("test", path=folder(tmp_path, row), **options)
    return problem


CASE = {"input": "1\n2\n", "output": "3\n", "testtype": "stdin"}
HIDDEN = {"input": "5\n5\n", "output": "10\n", "testtype": "stdin"}


def test_our_own_form(tmp_path: Path):
    found = only(
        tmp_path, {"question": "Double.", "tests": [{"stdin": "1", "stdout": "2", "note": "x"}], "difficulty": "easy"}
    )
    assert found.answer == {"tests": [{"stdin": "1", "stdout": "2"}]}
    assert (found.question, found.task, found.meta) == ("Double.", "code", {"difficulty": "easy"})


def test_our_own_form_of_a_function(tmp_path: Path):
    found = only(tmp_path, {"question": "Add.", "function": "add", "tests": [{"args": [1, 2], "result": 3}]})
    assert found.answer == {"function": "add", "tests": [{"args": [1, 2], "result": 3}]}


def test_apps_programs(tmp_path: Path):
    cases = {"inputs": ["1\n2\n", ["3", "4"]], "outputs": ["3\n", ["7"]]}
    found = only(tmp_path, {"problem_id": 7, "question": "Add.", "input_output": json.dumps(cases), "starter_code": ""})
    assert found.answer == {"tests": [{"stdin": "1\n2\n", "stdout": "3\n"}, {"stdin": "3\n4", "stdout": "7"}]}
    assert found.meta == {"problem_id": 7}


def test_apps_functions(tmp_path: Path):
    cases = {"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]}
    row = {"question": "Add.", "input_output": json.dumps(cases), "starter_code": "def add(a, b):"}
    found = only(tmp_path, row)
    assert found.answer == {"function": "add", "tests": [{"args": [1, 2], "result": 3}]}
    assert found.question == "Add.\n\nBegin with:\n```python\ndef add(a, b):\n```"


def test_livecodebench_programs(tmp_path: Path):
    row = {
        "question_content": "Add.", "question_id": "abc_a", "public_test_cases": json.dumps([CASE]),
        "private_test_cases": json.dumps([HIDDEN]),
    }  # fmt: skip
    both = [{"stdin": "1\n2\n", "stdout": "3\n"}, {"stdin": "5\n5\n", "stdout": "10\n"}]
    assert only(tmp_path, row).answer == {"tests": both}
    assert only(tmp_path, row, tests="public").answer == {"tests": both[:1]}


def test_livecodebench_functions(tmp_path: Path):
    case = {"input": '[1, 2]\n"x"', "output": "[3]", "testtype": "functional"}
    row = {"question_content": "?", "public_test_cases": json.dumps([case]), "metadata": json.dumps({"func_name": "f"})}
    assert only(tmp_path, row).answer == {"function": "f", "tests": [{"args": [[1, 2], "x"], "result": [3]}]}


def test_packed_private_tests_are_not_unpacked(tmp_path: Path):
    packed = base64.b64encode(b"x\x9c...").decode()
    row = {"question_content": "?", "public_test_cases": json.dumps([CASE]), "private_test_cases": packed}
    with refused(DataError, "test.jsonl:1", "'private_test_cases'", "'public'", code="data.malformed"):
        only(tmp_path, row)
    assert only(tmp_path, row, tests="public").answer["tests"]


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"question": "?"}, ("tests", "input_output", "public_test_cases")),
        ({"question": "?", "tests": [{"stdin": "1"}]}, ("'tests'", "stdin", "stdout")),
        ({"question": "?", "tests": []}, ("'tests'",)),
        ({"question": "?", "input_output": "{"}, ("'input_output'", "JSON")),
        ({"question": "?", "input_output": {"inputs": ["1"], "outputs": []}}, ("'input_output'", "zip")),
        ({"question": "?", "input_output": {"inputs": [], "outputs": []}}, ("tests",)),
        ({"question_content": "?", "public_test_cases": [{"input": "1"}]}, ("LiveCodeBench", "'output'")),
        ({"question_content": "?", "public_test_cases": [{**CASE, "testtype": "functional"}]}, ("'metadata'",)),
    ],
)
def test_a_record_that_cannot_be_used_is_named(tmp_path: Path, row: dict[str, Any], named: tuple[str, ...]):
    with refused(DataError, "test.jsonl:1", *named, code="data.malformed"):
        only(tmp_path, row)


def test_a_single_file_is_dealt_to_the_splits(tmp_path: Path):
    file = tmp_path / "pool.jsonl"
    rows = [{"question": f"q{i}", "tests": [{"stdin": "1", "stdout": "2"}]} for i in range(200)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    dealt = [{problem.question for problem in code(split, path=str(file))} for split in SPLITS]
    assert sum(map(len, dealt)) == len(set.union(*dealt)) == 200
    assert len(dealt[0]) > 130


# procedural


def test_programs_are_repeatable_distinct_and_split():
    train, again = programs("train", size=50), programs("train", size=60)
    assert train == again[:50]
    assert len({problem.id for problem in again}) == 60
    assert not {p.id for p in programs("test", size=50)} & {p.id for p in programs("train", size=256)}


def test_their_tests_follow_from_the_function_and_no_constant_passes():
    for problem in programs("train", size=100):
        tests = problem.answer["tests"]
        assert len({test["stdout"] for test in tests}) > 1
        for test in tests:
            scope = {"x": int(test["stdin"])}
            assert str(eval(problem.meta["expression"], scope)) == test["stdout"].strip()  # our own text


def test_more_programs_than_there_are_and_too_few_tests_are_refused():
    with refused(ConfigError, 500, key="task.size", code="config.value"):
        programs("test", size=500)
    with refused(ConfigError, 1, key="task.tests_per_problem", code="config.value"):
        programs("test", tests_per_problem=1)
