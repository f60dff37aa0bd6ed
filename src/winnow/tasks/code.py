"""Programming problems: from files in the style of APPS and LiveCodeBench, and procedural ones that need no file.

The reward `code_tests` reads the gold, whose form rewards/programs.py describes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from winnow.records import Problem
from winnow.registry import register
from winnow.rewards.programs import read_tests
from winnow.seeds import generator
from winnow.tasks.problems import check_split, listed, problem, refused, same_text, split_of
from winnow.tasks.rows import Record, read_rows
from winnow.tasks.source import FORMS

Gold = dict[str, Any]
MOST_DRAWS = 40  # per requested problem; a tenth of the texts is in the test split
Format = Literal["plain", "apps", "livecodebench"]
_QUESTION: Mapping[Format, str] = MappingProxyType(
    {"plain": "question", "apps": "question", "livecodebench": "question_content"}
)
_PICKLED = (
    "unpack them into JSON where you trust them (they are published packed with pickle, which winnow does not read), "
    "or set task.tests = 'public'"
)
Draw = Callable[[int, int], tuple[str, Callable[[int], int]]]

_FUNCTIONS: tuple[Draw, ...] = (
    lambda a, b: (f"x + {b}", lambda x: x + b),
    lambda a, b: (f"{a} * x", lambda x: a * x),
    lambda a, b: (f"{a} * x + {b}", lambda x: a * x + b),
    lambda a, b: (f"{a} * x - {b}", lambda x: a * x - b),
    lambda a, b: (f"x * x + {b}", lambda x: x * x + b),
    lambda a, b: (f"(x + {b}) * {a}", lambda x: (x + b) * a),
    lambda a, b: (f"x % {a + 1} + {b}", lambda x: x % (a + 1) + b),
    lambda a, b: (f"x // {a} - {b}", lambda x: x // a - b),
)


@register("task")
def code(split: str, *, path: str, tests: Literal["all", "public"] = "all") -> list[Problem]:
    """Programming problems with tests, from JSON lines or Parquet.

    `path` is a file, which is split by a hash of the question (80% train, 10% validation, 10% test), or a folder
    with train.jsonl, validation.jsonl and test.jsonl (or .parquet). The fields of a record determine its form: `tests`
    (with `function` for a function) is winnow's, `input_output` is from APPS (Hendrycks et al., 2021, arXiv
    2105.09938) and TACO (Li et al., 2023, arXiv 2312.14852). `public_test_cases` is from LiveCodeBench (Jain et al.,
    2024, arXiv 2403.07974), where the option `tests` selects whether the private ones count. Starter code follows the
    question; the fields that identify a problem, and its `solution`, are in `meta`.

    APPS and TACO write the result of a function in a list of one. Their checkers accept the list and its element, so
    both are right here. LiveCodeBench's checker accepts the result alone.

    Raises DataError with file and line for a record without question or tests, for an expected output above 1 MiB,
    which no program could print, and for private tests that are packed with pickle, which is never read.
    """
    wanted, place = check_split(split), Path(os.path.expanduser(path))
    problems = []
    files = [place / f"{wanted}{form}" for form in FORMS] if place.is_dir() else [place]
    for record in read_rows(next(filter(Path.is_file, files), files[0])):
        question = record.text(_QUESTION[_format(record)])
        if place.is_dir() or split_of(same_text(question)) == wanted:
            problems.append(_problem(record, question, tests))
    return listed(problems, split=split, source=path)


@register("task")
def programs(split: str, *, size: int = 256, tests_per_problem: int = 4, seed: int = 0) -> list[Problem]:
    """Write a program that prints a simple function of the integer it reads; drawn on demand, no file.

    The split is a hash of the function (80 / 10 / 10). Test inputs are drawn per problem, and no constant passes all
    of them. `meta` contains the function and a solution. Raises ConfigError for a size that the functions cannot fill,
    and for fewer than 2 tests.
    """
    wanted = check_split(split)
    if tests_per_problem < 2:
        raise refused(
            "tests_per_problem",
            f"task.tests_per_problem is {tests_per_problem}: a constant passes a single test",
            "set it to 2 or more",
        )
    problems: dict[str, Problem] = {}
    for item in range(MOST_DRAWS * size):
        rng = generator("programs", seed, split, item)
        kind, a, b = int(rng.integers(len(_FUNCTIONS))), int(rng.integers(2, 10)), int(rng.integers(1, 100))
        expression, value = _FUNCTIONS[kind](a, b)
        if split_of(expression) == wanted and expression not in problems:
            problems[expression] = _procedural(expression, value, tests_per_problem, seed)
        if len(problems) == size:
            return list(problems.values())
    raise refused("size", f"task.size is {size}: there are only about {len(problems)} {split} programs", "lower it")


def _format(record: Record) -> Format:
    fields: Mapping[str, Format] = {"tests": "plain", "input_output": "apps", "public_test_cases": "livecodebench"}
    for field, form in fields.items():
        if record.fields.get(field) is not None:  # a table of several forms has the columns of all
            return form
    raise record.malformed("there are no tests", "add one of the fields tests, input_output and public_test_cases")


def _problem(record: Record, question: str, tests: str) -> Problem:
    gold = _GOLDS[_format(record)](record, tests)
    if not gold["tests"]:
        raise record.malformed("this problem has no tests", "remove it")
    try:
        read_tests(gold)
    except ValueError as error:
        raise record.malformed(f"its tests cannot be used ({error})", "correct or remove the line") from error
    starter = record.fields.get("starter_code")
    text = f"{question}\n\nBegin with:\n```python\n{starter}\n```" if starter else question
    named = (
        *("problem_id", "question_id", "question_title", "difficulty", "platform", "contest_date", "source"),
        "solution",  # which `winnow audit` tries
    )
    meta = {name: record.fields[name] for name in named if name in record.fields}
    return problem("code", text, gold, meta, where=record.where)


def _plain(record: Record, tests: str) -> Gold:
    function = record.fields.get("function") or None
    rows = record.value("tests")
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and row.keys() >= {*_wanted(row, function)} for row in rows
    ):
        names = " and ".join(_wanted({}, function))
        raise record.malformed("the field 'tests' is no list of tests", f"list objects with {names}")
    made = [{name: row[name] for name in _wanted(row, function)} for row in rows]
    return {"tests": made} if function is None else {"function": str(function), "tests": made}


def _wanted(row: Mapping[str, Any], function: str | None) -> tuple[str, str]:
    """The names of a test's input and of its expected output."""
    if function is None:
        return "stdin", "stdout"
    return "args", "result" if row.get("results") is None else "results"


def _apps(record: Record, tests: str) -> Gold:
    cases = _json(record, "input_output")
    try:
        pairs = list(zip(cases["inputs"], cases["outputs"], strict=True))
        function = cases.get("fn_name") or None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise record.malformed(
            f"'input_output' is no set of tests ({error})",
            "give it inputs and as many outputs, or remove the line",
        ) from error
    if function is None:
        return {"tests": [{"stdin": _text(a), "stdout": _text(b)} for a, b in pairs]}
    return {"function": function, "tests": [{"args": a, **_either(b)} for a, b in pairs]}


def _either(output: Any) -> dict[str, Any]:
    """The expected result of a function; of a list of one element, the element and the list."""
    return {"results": [output[0], output]} if isinstance(output, list) and len(output) == 1 else {"result": output}


def _livecodebench(record: Record, tests: str) -> Gold:
    cases = _json(record, "public_test_cases")
    both = tests == "all" and record.fields.get("private_test_cases")
    hidden = _json(record, "private_test_cases", remedy=_PICKLED) if both else []
    try:
        cases = cases + hidden
        if all(case.get("testtype", "stdin") == "stdin" for case in cases):
            return {"tests": [{"stdin": case["input"], "stdout": case["output"]} for case in cases]}
        function = _json(record, "metadata")["func_name"]
        return {"function": function, "tests": [_call(case) for case in cases]}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise record.malformed(
            f"its test cases or metadata are not in LiveCodeBench's form ({error!r})",
            "use the published file, or remove the line",
        ) from error


def _call(case: Mapping[str, str]) -> dict[str, Any]:
    """One argument per line, each as JSON, whose texts may have Unicode's line separators."""
    lines = [line for line in case["input"].split("\n") if line.strip()]
    return {"args": list(map(json.loads, lines)), "result": json.loads(case["output"])}


_GOLDS: Mapping[Format, Callable[[Record, str], Gold]] = MappingProxyType(
    {"plain": _plain, "apps": _apps, "livecodebench": _livecodebench}
)


def _json(record: Record, field: str, *, remedy: str = "correct or remove this line") -> Any:
    """The value of a field that is JSON, or text that contains JSON."""
    value = record.value(field)
    return record.parsed(value, f"the field {field!r} is not JSON", remedy) if isinstance(value, str) else value


def _text(value: Any) -> str:
    """The text of an input or output of APPS, which may be a list of lines."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _procedural(expression: str, value: Callable[[int], int], count: int, seed: int) -> Problem:
    inputs = list(_inputs(generator("programs inputs", seed, expression), value, count))
    return problem(
        "programs",
        f"Write a Python program that reads an integer x and prints {expression}.",
        {"tests": [{"stdin": f"{x}\n", "stdout": f"{value(x)}\n"} for x in inputs]},
        {"expression": expression, "solution": f"x = int(input())\nprint({expression})"},
    )


def _inputs(rng: np.random.Generator, value: Callable[[int], int], count: int) -> Iterator[int]:
    """Numbers from 0 to 99. The second is drawn until its result differs from the first's, so that no constant
    answers both.
    """
    first = int(rng.integers(100))
    yield first
    for item in range(1, count):
        x = int(rng.integers(100))
        while item == 1 and value(x) == value(first):
            x = int(rng.integers(100))
        yield x
