"""Arithmetic with a calculator, played by hand."""

from __future__ import annotations

import numpy as np
import pytest

from winnow.environments.contract import check_environment
from winnow.environments.replay import make_environment
from winnow.records import Outcome, Prompt, Reply, Rollout
from winnow.registry import resolve

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


def test_it_meets_the_contract():
    check_environment(resolve("environment", "calculator"))
