"""Calls of tools: both forms, malformed ones, and the calculator against values by hand and hostile expressions."""

from __future__ import annotations

import time

import pytest

from winnow.environments.tools import Call, Malformed, answer_call, calculator, read_call

TOOLS = {"calculator": calculator}


def test_both_forms_of_a_call():
    assert read_call("so <call>calculator 12 * 7</call> and") == Call("calculator", "12 * 7")
    text = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12 * 7"}}\n</tool_call>'
    assert read_call(text) == Call("calculator", "12 * 7", template=True)
    assert read_call("12 * 7 is 84</think> <answer>84</answer>") is None


def test_the_last_call_of_a_turn_counts():
    assert read_call("<call>calculator 1</call><call>calculator 2</call>") == Call("calculator", "2")


@pytest.mark.parametrize(
    "text",
    [
        "<call>calculator 1",
        "<call> </call>",
        "<tool_call>calculator</tool_call>",
        '<tool_call>{"name": "calculator", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "calculator", "arguments": {"a": "1", "b": "2"}}</tool_call>',
        '<tool_call>{"name": "calculator", "arguments": {"a": 1}}</tool_call>',
        '<tool_call>["calculator"]</tool_call>',
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
    ],
)
def test_a_malformed_call_is_answered_with_an_error(text):
    call = read_call(text)
    assert isinstance(call, Malformed)
    assert "error: " in answer_call(call, TOOLS)


def test_answers_have_the_form_of_the_call():
    assert answer_call(Call("calculator", "12 * 7"), TOOLS) == "84"
    assert answer_call(Call("calculator", "12 * 7", template=True), TOOLS) == "<tool_response>\n84\n</tool_response>"
    for argument in ("12 *", "x"):
        assert answer_call(Call("calculator", argument), TOOLS).startswith("error: ")
    assert answer_call(Call("search", "x"), TOOLS).startswith("error: ")


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
