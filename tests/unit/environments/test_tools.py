"""Answers to calls of tools, and the calculator against values by hand and hostile expressions."""

from __future__ import annotations

import time

import pytest

from winnow.environments.tool_calls import Call, Malformed
from winnow.environments.tools import answer_calls, calculator
from winnow.records import ToolAnswer

TOOLS = {"calculator": calculator, "reverse": lambda text: text[::-1]}


def call(argument, name="calculator", **more):
    return Call(name, {"text": argument}, **more)


def test_calls_in_winnows_own_form_are_answered_with_a_text():
    assert answer_calls([call("12 * 7", own=True)], TOOLS) == "84"
    both = [call("12 * 7", own=True), call("abc", "reverse", own=True), Malformed("it is empty", own=True)]
    assert answer_calls(both, TOOLS) == "84\ncba\nerror: it is empty"


def test_other_calls_are_answered_one_by_one_in_order():
    calls = [call("12 * 7", id="a1b2c3d4e"), call("abc", "reverse"), Malformed("no"), call("1 + 1", own=True)]
    assert answer_calls(calls, TOOLS) == (
        ToolAnswer(text="84", name="calculator", call_id="a1b2c3d4e"),
        ToolAnswer(text="cba", name="reverse", call_id="call00001"),
        ToolAnswer(text="error: no", name="error", call_id="call00002"),
        ToolAnswer(text="2", name="calculator", call_id="call00003"),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        call("12 *"),
        call("x"),
        call("12", "search"),
        call("12", "x" * 10_000),
        Call("calculator", {}),
        Call("calculator", {"a": "1", "b": "2"}),
        Call("calculator", {"a": 1}),
        Call("calculator", {"a": {"b": "1"}}),
        Malformed("the call has no end tag"),
    ],
)
def test_a_call_that_cannot_be_made_is_answered_with_an_error(wrong):
    (answer,) = answer_calls([wrong], TOOLS)
    assert answer.text.startswith("error: ")
    assert len(answer.text) < 200


class Shelf:
    """No type that pydantic reads from JSON."""


def move(shelf: Shelf) -> str:
    return f"{shelf!r} is full"


def test_an_argument_of_a_class_that_is_not_read_from_json_is_a_text():
    (answer,) = answer_calls([Call("move", {"shelf": "left"})], {"move": move})
    assert answer.text == "'left' is full"
    (answer,) = answer_calls([Call("move", {"shelf": 3})], {"move": move})
    assert answer.text.startswith("error: ")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12 * 7", "84"),
        ("(12 + 34) * 5 - 1", "229"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("7 / 2", "3.5"),
        ("0.1 + 0.2", "0.3"),
        ("1 / 3", "0.3333333333"),
        ("2 ** 10", "1024"),
        ("2 ** -2", "0.25"),
        ("+3", "3"),
        ("10 ** 20 + 1", "100000000000000000001"),
    ],
)
def test_values_by_hand(expression, value):
    assert calculator(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        *("", "1 +", "x", "True", "'a' * 3", "f(1)", "(1).real", "[1][0]", "1 if 1 else 2", "1 < 2", "~1", "1 @ 2"),
        *("1 / 0", "1 % 0", "0 ** -1", "2 ** 0.5", "9 ** 9 ** 9", "2 ** (2 ** 60)", "1e999", "1" * 201, "1 / 1e-400"),
        *("(" * 150, "-" * 199 + "1x", "1j", "1\0", "\ud800", "10 ** 400 / 3", "10 ** 1000 * 10 ** 1000"),
        "__import__('os').system('true')",
    ],
)
def test_anything_else_is_refused_at_once(expression):
    started = time.process_time()
    with pytest.raises(ValueError, match=r"\w"):
        calculator(expression)
    assert time.process_time() - started < 1.0
