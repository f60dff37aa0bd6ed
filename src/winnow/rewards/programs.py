"""The gold of a programming problem: its tests, and which outputs and results pass them.

It is {"tests": [{"stdin", "stdout"}, ...]} for whole programs, and for a function {"function": name, "tests":
[{"args", "result"}, ...]}. If any of several results is right, a test has `results`, a list of them, in place of
`result`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

LONGEST_OUTPUT = 2**20  # bytes that a program may print, or return as JSON; it is stopped beyond them
_MARKED = 64  # bytes of the value's pipe that are not the value
_NUMBER = re.compile(rb"[-+]?(\d{1,300}\.?\d{0,300}|\.\d{1,300})([eE][-+]?\d{1,4})?")
_INTEGER = re.compile(rb"[-+]?\d+")


def same_output(mine: bytes, gold: bytes, *, tolerance: float) -> bool:
    """Compare line by line, ignoring white space at both ends of a line, and blank lines at the beginning and the end.

    If the gold writes a number with a point or an exponent, any number within `tolerance` is equal (relative to the
    gold's size, absolute below 1); integers and words are compared as text.
    """
    return all(
        a is not None and b is not None and (a == b or _same_words(a.split(), b.split(), tolerance))
        for a, b in zip_longest(_lines(mine), _lines(gold))
    )


def same_value(mine: Any, gold: Any, *, tolerance: float) -> bool:
    """Compare JSON values: true is not 1, 2.0 is 2, and if the gold is no integer the tolerance applies."""
    match gold:
        case bool() | None | str():
            return type(mine) is type(gold) and bool(mine == gold)
        case int() | float():
            return type(mine) in (int, float) and _same_numbers(mine, gold, tolerance)
        case list():
            return isinstance(mine, list) and len(mine) == len(gold) and all(
                same_value(a, b, tolerance=tolerance) for a, b in zip(mine, gold, strict=True)
            )  # fmt: skip
        case dict():
            return isinstance(mine, dict) and mine.keys() == gold.keys() and all(
                same_value(mine[key], gold[key], tolerance=tolerance) for key in gold
            )  # fmt: skip
    return False


def _lines(text: bytes) -> list[bytes]:
    return [line.rstrip() for line in text.strip().split(b"\n")]


def _same_words(mine: list[bytes], gold: list[bytes], tolerance: float) -> bool:
    return len(mine) == len(gold) and all(a == b or _close(a, b, tolerance) for a, b in zip(mine, gold, strict=True))


def _close(mine: bytes, gold: bytes, tolerance: float) -> bool:
    if _INTEGER.fullmatch(gold) or not (_NUMBER.fullmatch(gold) and _NUMBER.fullmatch(mine)):
        return False
    return _same_numbers(float(mine), float(gold), tolerance)


def _same_numbers(mine: float, gold: float, tolerance: float) -> bool:
    if mine == gold:
        return True
    if isinstance(gold, int) or not math.isfinite(gold):
        return False
    try:
        return abs(mine - gold) <= tolerance * max(1.0, abs(gold))
    except OverflowError:  # an integer of more than 308 digits: not near any float
        return False


@dataclass(frozen=True, slots=True)
class Test:
    """One test: its input, and the expected output, which is not sent to the program."""

    stdin: str
    arguments: list[Any] | None  # arguments of a function; None: a whole program
    expected: Sequence[Any]  # any of these is right; for a whole program one text


def read_tests(gold: Any) -> tuple[str, list[Test]]:
    """The gold's function (empty: whole programs) and tests.

    Raises ValueError for a gold in another form, and for an output that no program may print, with its size.
    """
    try:
        function, listed = gold.get("function", ""), list(gold["tests"])
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(repr(error)) from error
    if not listed:
        raise ValueError("it is empty")
    return function, [_test(test, number, of_function=bool(function)) for number, test in enumerate(listed, start=1)]


def _test(test: Any, number: int, *, of_function: bool) -> Test:
    try:
        made = _function_test(test) if of_function else _program_test(test)
    except (KeyError, TypeError) as error:
        raise ValueError(f"test {number}: {error!r}") from error
    size = _least_output(made)
    if size > LONGEST_OUTPUT:
        raise ValueError(f"test {number}: its output has {size} bytes, and a program is stopped at {LONGEST_OUTPUT}")
    return made


def _function_test(test: Any) -> Test:
    for name in ("args", "results"):
        if name in test and not isinstance(test[name], (list, tuple)):
            raise TypeError(f"{name} is of the type {type(test[name]).__name__}, and not a list")
    results = list(test["results"]) if "results" in test else [test["result"]]
    if not results:
        raise TypeError("results is empty")
    return Test(stdin="", arguments=list(test["args"]), expected=results)


def _program_test(test: Any) -> Test:
    texts = (test["stdin"], test["stdout"])
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(f"stdin and stdout are {' and '.join(type(text).__name__ for text in texts)}, and not text")
    return Test(stdin=texts[0], arguments=None, expected=texts[1:])


def _least_output(test: Test) -> int:
    """The bytes of the shortest output that passes the test, with the line break at its end, or around its value."""
    if test.arguments is None:
        return len(test.expected[0].strip().encode("utf-8", "surrogatepass")) + 1
    return min(len(json.dumps(result)) for result in test.expected) + _MARKED
