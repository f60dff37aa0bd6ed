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
from winnow.rewards.programs import LONGEST_OUTPUT
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


def test_our_own_form_with_several_right_results(tmp_path: Path):
    tests = [{"args": [3], "results": [[1, 2], [2, 1]]}]
    assert only(tmp_path, {"question": "?", "function": "f", "tests": tests}).answer["tests"] == tests


def test_our_own_form(tmp_path: Path):
    found = only(
        tmp_path, {"question": "Double.", "tests": [{"stdin": "1", "stdout": "2", "note": "x"}], "difficulty": "easy"}
    )
    assert found.answer == {"tests": [{"stdin": "1", "stdout": "2"}]}
    assert (found.question, found.task, found.meta) == ("Double.", "code", {"difficulty": "easy"})
    assert found.where.endswith(":1")


def test_a_column_without_a_value_is_no_form(tmp_path: Path):
    cases = {"fn_name": "", "inputs": ["1"], "outputs": ["2"]}
    whole = {"tests": [{"stdin": "1", "stdout": "2"}]}
    apps = {"question": "?", "tests": None, "input_output": cases, "public_test_cases": None}
    assert only(tmp_path, apps).answer == whole
    assert only(tmp_path, {"question": "?", "function": "", "input_output": None, **whole}).answer == whole


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
    assert found.answer == {"function": "add", "tests": [{"args": [1, 2], "results": [3, [3]]}]}
    assert found.question == "Add.\n\nBegin with:\n```python\ndef add(a, b):\n```"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([[1, 2]], {"results": [[1, 2], [[1, 2]]]}),
        ([[]], {"results": [[], [[]]]}),
        ([None], {"results": [None, [None]]}),
        ([1, 2], {"result": [1, 2]}),
        ([], {"result": []}),
        (7, {"result": 7}),
        ("x", {"result": "x"}),
    ],
)
def test_only_a_list_of_one_element_has_two_readings(tmp_path: Path, output: Any, expected: dict[str, Any]):
    cases = {"fn_name": "f", "inputs": [[1]], "outputs": [output]}
    found = only(tmp_path, {"question": "?", "input_output": cases})
    assert found.answer["tests"] == [{"args": [1], **expected}]


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
    case |= {"input": '"a\u2028b\x85"\r\n2\n'}
    row["public_test_cases"] = json.dumps([case])
    assert only(tmp_path, row).answer["tests"][0]["args"] == ["a\u2028b\x85", 2]


LONG = "1" * (LONGEST_OUTPUT - 1)  # with its line break, as long as an output may be
LISTED = ["1" * (LONGEST_OUTPUT - 100)]


def longest(form: str, output: Any) -> dict[str, Any]:
    """A record of this form whose second test expects the output."""
    match form:
        case "plain":
            return {"question": "?", "tests": [{"stdin": "", "stdout": text} for text in ("1", output)]}
        case "plain function":
            tests = [{"args": [], "result": result} for result in (1, output)]
            return {"question": "?", "function": "f", "tests": tests}
        case "apps":
            return {"question": "?", "input_output": {"inputs": ["", ""], "outputs": ["1", output]}}
        case "apps function":
            cases = {"fn_name": "f", "inputs": [[], []], "outputs": [[1], output]}
            return {"question": "?", "input_output": json.dumps(cases)}
        case "livecodebench":
            hidden = [{"input": "", "output": output, "testtype": "stdin"}]
            return {"question_content": "?", "public_test_cases": [CASE], "private_test_cases": hidden}
        case _:
            cases = [{"input": "1", "output": json.dumps(text), "testtype": "functional"} for text in (1, output)]
            return {"question_content": "?", "public_test_cases": cases, "metadata": {"func_name": "f"}}


FORMS = {
    **dict.fromkeys(("plain", "apps", "livecodebench"), (LONG, "1" + LONG)),
    **dict.fromkeys(("plain function", "apps function", "livecodebench function"), (LISTED, [LISTED[0] + "1" * 100])),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_output_that_no_program_may_print_is_refused_with_its_size(tmp_path: Path, form: str):
    allowed, longer = FORMS[form]
    assert len(only(tmp_path, longest(form, allowed)).answer["tests"]) == 2
    with refused(DataError, "test.jsonl:1", "test 2", LONGEST_OUTPUT, code="data.malformed"):
        only(tmp_path, longest(form, longer))


def test_blank_lines_around_an_output_do_not_count(tmp_path: Path):
    assert only(tmp_path, longest("plain", "\n" * LONGEST_OUTPUT + "1" + " \n" * 9)).answer["tests"]


def test_an_output_in_bytes_is_measured(tmp_path: Path):
    """Half as many characters of two bytes each."""
    with refused(DataError, "test.jsonl:1", LONGEST_OUTPUT + 2, code="data.malformed"):
        only(tmp_path, longest("plain", "é" * (LONGEST_OUTPUT // 2) + "1"))


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
        ({"question": "?", "tests": [{"stdin": "1", "stdout": 2}]}, ("test 1",)),
        ({"question_content": "?", "public_test_cases": [CASE, {**CASE, "input": [1]}]}, ("test 2",)),
        ({"question": "?", "input_output": "{"}, ("'input_output'", "JSON")),
        ({"question": "?", "input_output": {"inputs": ["1"], "outputs": []}}, ("'input_output'", "zip")),
        ({"question": "?", "input_output": {"inputs": [], "outputs": []}}, ("tests",)),
        ({"question_content": "?", "public_test_cases": [{"input": "1"}]}, ("LiveCodeBench", "'output'")),
        ({"question_content": "?", "public_test_cases": [{**CASE, "testtype": "functional"}]}, ("'metadata'",)),
        (
            {"question_content": "?", "public_test_cases": [CASE], "private_test_cases": {"input": ["1"]}},
            ("LiveCodeBench",),
        ),
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
    file.write_text("".join(json.dumps({**rows[0], "question": text}) + "\n" for text in ("a b", "a  b", "a\nb ")))
    assert sorted(map(len, [list(_dealt(split, file)) for split in SPLITS])) == [0, 0, 3]


def _dealt(split: str, file: Path) -> list[Problem]:
    try:
        return code(split, path=str(file))
    except DataError:
        return []


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


def test_a_solution_is_kept_for_the_audit(tmp_path: Path):
    row = {"question": "?", "tests": [{"stdin": "1", "stdout": "2"}], "solution": "print(2)"}
    assert only(tmp_path, row).meta == {"solution": "print(2)"}
