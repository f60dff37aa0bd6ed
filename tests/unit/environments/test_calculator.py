"""Arithmetic with a calculator, played by hand."""

from __future__ import annotations

import numpy as np
import pytest

from refusals import refused
from winnow.environments.replay import make_environment
from winnow.errors import ConfigError
from winnow.records import Outcome, Prompt, Reply, Rollout

ANSWER = "</think> <answer>84</answer>"


def play(*replies, **options):
    """The environment's texts, and its outcome (None where it goes on)."""
    environment = make_environment("calculator", options, max_turns=8)
    prompt = Prompt(id="p", tokens=np.array([1]), text="What is 12 * 7?", answer="84", task="t")
    turns, none = [], np.zeros(0)
    for reply in replies:
        turns.append(reply)
        rollout = Rollout(
            index=0, tokens=none.astype(int), logprobs=none, text="", finish="stop", version=0, turns=tuple(turns)
        )
        verdict = environment(prompt, rollout)
        if isinstance(verdict, Outcome):
            return turns[1::2], verdict
        assert isinstance(verdict, Reply)
        turns.append(verdict.text)
    return turns[1::2], None


def test_a_call_is_answered_and_the_answer_is_judged():
    texts, outcome = play("<call>calculator 12 * 7</call>", ANSWER)
    assert texts == ["84"]
    assert (outcome.parts, outcome.correct) == ({"right": 1.0, "readable": 0.0}, True)


@pytest.mark.parametrize(("reply", "right"), [(ANSWER, 1.0), ("<answer>83</answer>", 0.0), ("84", 0.0)])
def test_an_answer_needs_no_call(reply, right):
    texts, outcome = play(reply)
    assert texts == []
    assert outcome.parts == {"right": right, "readable": 0.0}


def test_a_malformed_call_costs_something_and_can_be_repaired():
    texts, outcome = play("<call>calculator 12 * 7", "<call>calculator 12 *</call>", ANSWER)
    assert [text[:7] for text in texts] == ["error: "] * 2
    assert outcome.parts == {"right": 1.0, "readable": -0.1}


def test_calls_are_limited():
    call = "<call>calculator 1</call>"
    assert play(call, call, calls=2) == (["1", "1"], None)
    texts, outcome = play(call, call, call, calls=2)
    assert len(texts) == 2
    assert (outcome.correct, outcome.kind) == (False, "wrong")


def test_all_calls_of_a_turn_are_answered_in_order():
    texts, outcome = play("<call>calculator 1 + 1</call> and <call>calculator 2 *</call><call>look 3</call>", ANSWER)
    first, second, third = texts[0].split("\n")
    assert first == "2"
    assert [second[:7], third[:7]] == ["error: "] * 2
    assert outcome.parts == {"right": 1.0, "readable": 0.0}


def test_the_calls_of_all_turns_count():
    call = "<call>calculator 1</call>"
    texts, outcome = play(call * 2, call * 2, ANSWER, calls=3)
    assert texts[0] == "1\n1"
    assert texts[1].startswith("1\nerror: ")
    assert outcome.correct
    texts, outcome = play(call * 4, call, calls=3)
    assert [line[:6] for line in texts[0].split("\n")] == ["1", "1", "1", "error:"]
    assert (outcome.correct, outcome.kind) == (False, "wrong")


@pytest.mark.parametrize(
    ("form", "turn"),
    [
        ("llama3", '{"name": "calculator", "parameters": {"expression": "12 * 7"}}; {"name": "f", "parameters": {}}'),
        ("mistral", '[TOOL_CALLS]calculator[ARGS]{"expression": "12 * 7"}[TOOL_CALLS]f[ARGS]{}'),
        (
            "hermes",
            '<tool_call>{"name": "calculator", "arguments": {"expression": "12 * 7"}}</tool_call>'
            '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
        ),
    ],
)
def test_calls_in_the_form_of_a_template(form, turn):
    (text,), outcome = play(turn, ANSWER, call_form=form)
    assert text.startswith("<tool_response>\n84\n</tool_response>\n<tool_response>\nerror: ")
    assert outcome.parts == {"right": 1.0, "readable": 0.0}
    assert play(turn, call_form="hermes" if form != "hermes" else "mistral")[1].kind == "wrong", "no call, no answer"


def test_a_call_inside_a_thought_is_answered_with_an_error():
    texts, outcome = play("<think><call>calculator 1</call></think> I know it.", ANSWER)
    assert texts[0].startswith("error: ")
    assert outcome.parts == {"right": 1.0, "readable": -0.1}


def test_an_unknown_form_is_refused():
    with refused(ConfigError, "hermes", key="environment.call_form", code="config.value"):
        play(ANSWER, call_form="herms")
