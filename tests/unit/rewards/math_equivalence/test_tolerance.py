"""Measured golds: OlympiadBench's `error` and `unit`, several golds, and the reward for length."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from refusals import refused
from winnow.errors import ConfigError
from winnow.records import Outcome, Prompt, Rollout
from winnow.rewards.compose import make_reward
from winnow.rewards.math_equivalence import algebra

needs_algebra = pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")


def score(use: str, answer: Any, text: str, *, meta: Any = None, tokens: int = 1, **options: Any) -> Outcome:
    prompt = Prompt(id="p", tokens=np.zeros(1, np.int64), text="Q", answer=answer, task="t", meta=meta or {})
    rollout = Rollout(
        index=0, tokens=np.zeros(tokens, np.int64), logprobs=np.zeros(tokens), text=text, finish="stop", version=0
    )
    return make_reward({"use": use, "options": options})(prompt, rollout)


def kind(answer: Any, box: str, **how: Any) -> str:
    return score("boxed", answer, rf"\boxed{{{box}}}", **how).kind


@needs_algebra
@pytest.mark.parametrize(
    ("box", "error", "expected"),
    [
        ("4.2", "1e-1", "correct"),
        ("4.3", "1e-1", "correct"),  # exactly the error away
        ("4.1", 0.1, "correct"),  # a number is read as it is printed
        ("4.301", "1e-1", "wrong"),
        ("4.3", None, "wrong"),
        ("4.3", "", "wrong"),
        ("4.2", math.nan, "correct"),
        ("4.3", math.nan, "wrong"),
        (r"\frac{43}{10}", "1e-1", "correct"),
        ("x", "1e-1", "wrong"),
        ("4.2, 4.2", "1e-1", "wrong"),
    ],
)
def test_the_stated_error_is_absolute(box: str, error: Any, expected: str) -> None:
    assert kind("4.2", box, meta={"error": error}) == expected


@needs_algebra
def test_several_numbers_are_compared_in_order() -> None:
    assert kind("1.68,0.45", "1.7, 0.4", meta={"error": "0.05"}) == "correct"
    assert kind("1.68,0.45", "0.4, 1.7", meta={"error": "0.05"}) == "wrong"
    assert kind("(0.6,2.6667]", r"(\frac35,\frac83]", absolute_tolerance=1e-3) == "correct"


@needs_algebra
def test_the_option_is_for_problems_without_an_error() -> None:
    assert kind("10", "10.4", absolute_tolerance=0.5) == "correct"
    assert kind("1", "1.3", absolute_tolerance=0.3) == "correct"
    assert kind("10", "10.4", absolute_tolerance=0.5, meta={"error": "0.1"}) == "wrong"


@needs_algebra
def test_an_error_that_is_no_number_is_a_failure_with_the_remedy() -> None:
    outcome = score("boxed", "1", r"\boxed{1}", meta={"error": "small"})
    assert (outcome.kind, outcome.cause) == ("failed", "raised")
    assert "'small'" in outcome.detail
    assert "number" in outcome.detail


@needs_algebra
def test_a_tolerance_must_be_a_number() -> None:
    with refused(ConfigError, -1.0, key="reward.absolute_tolerance", code="config.value"):
        make_reward({"use": "boxed", "options": {"absolute_tolerance": -1.0}})


@needs_algebra
@pytest.mark.parametrize(
    ("gold", "unit", "box", "expected"),
    [
        ("8", "min", "8", "correct"),
        ("8", "min", r"8\text{ minutes}", "correct"),
        ("8", "min", r"8\text{ hours}", "wrong"),
        ("4.2", "%", r"4.2\%", "correct"),
        ("4.2", "%", "4.2", "correct"),
        ("$166$", "$cm^2$", r"166\text{ cm}^2", "correct"),
        ("$166$", "$cm^2$", r"166\text{ cm}", "wrong"),
        (r"8\text{ min}", "min", r"8\text{ min}", "correct"),
        ("4.2", None, r"4.2\%", "wrong"),
        (["7", "8"], "min", "8 min", "correct"),
        (r"\frac{600}{7}", "km/h", r"\frac{600}{7}", "correct"),
        (r"\frac{600}{7}", "km/h", r"\frac{600}{7} \text{ km/h}", "correct"),
        (r"\frac{600}{7}", "km/h", r"\frac{600}{7} \text{ m/s}", "wrong"),
        ("9.8", "m/s^2", r"9.8\,\mathrm{m\,s^{-2}}", "correct"),
        ("9.8", "m/s^2", r"9.8\,\mathrm{m\,s^{-1}}", "wrong"),
        ("12", r"\mathrm{~m}", "12", "correct"),
        ("12", "m", r"12 \text{ s}", "wrong"),
        ("12", "zorks", "12", "correct"),  # a word that is no unit
    ],
)
def test_the_unit_of_the_problem_may_be_written_but_not_exchanged(
    gold: Any, unit: str | None, box: str, expected: str
) -> None:
    assert kind(gold, box, meta={"unit": unit}) == expected


def test_the_strict_grader_takes_no_unit_that_it_would_not_omit() -> None:
    assert kind("9.8", "9.8", meta={"unit": "m/s^2"}, grader="strict") == "correct"
    assert kind("8", r"8\text{ min}", meta={"unit": "min"}, grader="strict") == "correct"


@pytest.mark.parametrize(
    ("tokens", "expected"), [(0, 1.0), (6, 1.0), (7, 0.75), (9, 0.25), (10, 0.0), (11, 0.0), (5000, 0.0)]
)
def test_length_falls_in_a_straight_line(tokens: int, expected: float) -> None:
    outcome = score("length", None, "any", tokens=tokens, limit_tokens=10, slope_tokens=4)
    assert outcome.reward == expected
    assert outcome.correct is (expected == 1.0)


def test_length_without_a_slope_is_a_limit() -> None:
    assert score("length", None, "any", tokens=10, limit_tokens=10, slope_tokens=0).reward == 1.0
    assert score("length", None, "any", tokens=11, limit_tokens=10, slope_tokens=0).reward == 0.0


def test_a_slope_longer_than_the_limit_is_refused() -> None:
    with refused(ConfigError, 10, 11, key="reward.slope_tokens", code="config.combination"):
        make_reward({"use": "length", "options": {"limit_tokens": 10, "slope_tokens": 11}})
