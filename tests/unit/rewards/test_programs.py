"""The gold of a programming problem: which outputs and results pass its tests, and which golds are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from winnow.rewards.programs import LONGEST_OUTPUT, read_tests, same_output, same_value


@pytest.mark.parametrize(
    ("mine", "gold", "same"),
    [
        (b"1 2\n3\n", b"1 2\n3", True),
        (b"1 2  \r\n3\n\n\n", b"1 2\n3\n", True),
        (b"\n1 2\n3\n", b"1 2\n3", True),
        (b"1 2\n3\n", b"\n \n1 2\n3", True),
        (b" \r\n\n  1 2\n3", b"\n1 2\n3", True),
        (b"1 2\n\n3\n", b"1 2\n3\n", False),  # between lines a blank line counts
        (b"\n", b"0", False),
        (b"1\n2\n3\n", b"1 2 3\n", False),
        (b"", b"", True),
        (b"\n", b"", True),
        (b"0.3333333", b"0.33333333", True),
        (b"0.334", b"0.333", False),
        (b"2", b"2.0", True),
        (b"2.0", b"2", False),  # the gold is an integer
        (b"1000000008", b"1000000007", False),
        (b"1e-9", b"0.0", True),
        (b"1e-9", b"0", False),
        (b"nan", b"0.5", False),
        (b"0.5 a", b"0.50 b", False),
        (b"9" * 900_000, b"1.5", False),
    ],
)
def test_outputs(mine: bytes, gold: bytes, same: bool):
    assert same_output(mine, gold, tolerance=1e-6) is same


@pytest.mark.parametrize(
    ("mine", "gold", "same"),
    [
        ([1, [2.0]], [1, [2]], True),
        (1, True, False),
        (True, 1, False),
        (None, None, True),
        (0, None, False),
        ("1", 1, False),
        ({"a": 0.1 + 0.2}, {"a": 0.3}, True),
        ({"a": 1}, {"b": 1}, False),
        ([1], [1, 2], False),
        (1000000008, 1000000007, False),
        (float("nan"), 1.0, False),
        (float("inf"), 1.0, False),
        (1.0, float("inf"), False),
        (10**4000, 1.0, False),
        (10**4000, 1, False),
        (1, 10**4000, False),
        (1.0, 10**4000, False),
    ],
)
def test_values(mine: Any, gold: Any, same: bool):
    assert same_value(mine, gold, tolerance=1e-6) is same


# golds


def test_the_tests_of_a_gold():
    function, (first, second) = read_tests({"function": "f", "tests": [
        {"args": [1], "result": [2]}, {"args": [], "results": [3, [3]]},
    ]})  # fmt: skip
    assert (function, first.arguments, first.expected) == ("f", [1], [[2]])
    assert (second.arguments, second.expected) == ([], [3, [3]])
    function, (whole,) = read_tests({"tests": [{"stdin": "1", "stdout": "2"}]})
    assert (function, whole.stdin, whole.arguments, whole.expected) == ("", "1", None, ("2",))


@pytest.mark.parametrize(
    ("gold", "named"),
    [
        ("2", "get"),
        ({}, "tests"),
        ({"tests": []}, "empty"),
        ({"tests": ["1"]}, "indices"),
        ({"tests": [{"stdin": "1"}]}, "stdout"),
        ({"tests": [{"stdin": "1", "stdout": 2}]}, "int"),
        ({"function": "f", "tests": [{"args": [1]}]}, "result"),
        ({"function": "f", "tests": [{"args": 1, "result": 1}]}, "args is of the type int"),
        ({"function": "f", "tests": [{"args": "[1, 2]", "result": 3}]}, "args is of the type str"),
        ({"function": "f", "tests": [{"args": {"a": 1}, "result": 3}]}, "args is of the type dict"),
        ({"function": "f", "tests": [{"args": [], "results": "42"}]}, "results is of the type str"),
        ({"function": "f", "tests": [{"args": [], "results": []}]}, "results"),
    ],
)
def test_a_gold_without_usable_tests_is_refused(gold: Any, named: str):
    with pytest.raises(ValueError, match=named):
        read_tests(gold)


def test_an_output_that_no_program_may_print_is_refused_with_its_size():
    """A line break follows the printed text. A returned value shares its pipe with at most 64 other bytes."""
    fits = {"tests": [{"stdin": "", "stdout": "\n" + "1" * (LONGEST_OUTPUT - 1) + "\n\n"}]}
    assert len(read_tests(fits)[1]) == 1
    for text in ("1" * LONGEST_OUTPUT, "\u00e9" * (LONGEST_OUTPUT // 2)):
        with pytest.raises(ValueError, match=re.escape(str(LONGEST_OUTPUT + 1))):
            read_tests({"tests": [{"stdin": "", "stdout": text}]})
    value = "1" * (LONGEST_OUTPUT - 66)  # with its quotation marks, 64 bytes below the limit
    short = {"args": [], "results": [value, value + "1"]}
    assert len(read_tests({"function": "f", "tests": [short]})[1]) == 1
    with pytest.raises(ValueError, match=re.escape(str(LONGEST_OUTPUT + 1))):
        read_tests({"function": "f", "tests": [{"args": [], "result": value + "1"}]})
