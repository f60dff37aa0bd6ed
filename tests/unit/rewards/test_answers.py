from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refusals import refused
from winnow.errors import ConfigError
from winnow.records import Outcome, Prompt, Rollout
from winnow.rewards.answers import boxed, gsm8k, numeric, question_only, r1_zero, tagged
from winnow.rewards.compose import make_reward
from winnow.rewards.math_equivalence import algebra


def prompt(answer: Any, text: str = "Q<think>") -> Prompt:
    return Prompt(id="p", tokens=np.zeros(1, np.int64), text=text, answer=answer, task="t")


def rollout(text: str) -> Rollout:
    empty = np.zeros(0)
    return Rollout(index=0, tokens=empty.astype(np.int64), logprobs=empty, text=text, finish="stop", version=0)


def summary(outcome: Outcome) -> tuple[str, float, float]:
    return outcome.kind, outcome.reward, outcome.parts["format"]


CORRECT, WRONG, NO_ANSWER, NO_FORMAT = (
    ("correct", 1.0, 1.0),
    ("wrong", 0.0, 1.0),
    ("unparsable", 0.0, 1.0),
    ("unparsable", 0.0, 0.0),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # rule 1: the exact substring, one space, and a closing tag
        ("r</think> <answer>42</answer>", CORRECT),
        ("r</think><answer>42</answer>", NO_FORMAT),
        ("r</think>  <answer>42</answer>", NO_FORMAT),
        ("r</think>\n<answer>42</answer>", NO_FORMAT),
        ("r</think> <answer>42", NO_FORMAT),
        ("<answer>42</answer>", NO_FORMAT),
        ("42", NO_FORMAT),
        ("", NO_FORMAT),
        # rule 2: after the last opening tag, every closing tag removed, what follows survives
        ("r</think> <answer>1</answer> <answer>42</answer>", CORRECT),
        ("r</think> <answer>42</answer> <answer>1</answer>", WRONG),
        ("r</think> <answer>4</answer>2", CORRECT),
        ("r</think> <answer>42</answer> and more", WRONG),
        ("</answer></think> <answer>42", CORRECT),
        # rule 3: a box inside the answer wins, and must close
        (r"r</think> <answer>it is \boxed{42} I think</answer>", CORRECT),
        (r"r</think> <answer>\boxed{42} or \boxed{1}</answer>", WRONG),
        (r"r</think> <answer>\boxed{42</answer>", NO_ANSWER),
        (r"\boxed{42}</think> <answer>1</answer>", WRONG),
        ("r</think> <answer></answer>", NO_ANSWER),
        ("r</think> <answer>  </answer>", NO_ANSWER),
        # rule 5 in one line, rule 6: formatted and wrong earns nothing
        ("r</think> <answer>x = 42 cm</answer>", CORRECT),
        ("r</think> <answer>84/2</answer>", WRONG),
    ],
)
def test_r1_zero_rules(text: str, expected: tuple[str, float, float]) -> None:
    assert summary(r1_zero(prompt("42"), rollout(text))) == expected


@pytest.mark.parametrize("gold", [42, 42.0, "42", r"\boxed{42}", ["41", "42"], (r"\boxed{42}",)])
def test_rule_4_golds_are_numbers_texts_or_lists_boxed_or_not(gold: Any) -> None:
    assert r1_zero(prompt(gold), rollout("r</think> <answer>42</answer>")).correct is True
    assert r1_zero(prompt(gold), rollout("r</think> <answer>43</answer>")).correct is False


def test_the_outcome_contains_the_extracted_answer() -> None:
    outcome = r1_zero(prompt("42"), rollout("r</think> <answer> 41 </answer>"))
    assert (outcome.answer, outcome.parts) == ("41", {"answer": 0.0, "format": 1.0})


@pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")
def test_the_grader_is_an_option() -> None:
    text = rollout("r</think> <answer>84/2</answer>")
    assert r1_zero(prompt("42"), text, grader="math").correct is True
    assert make_reward({"use": "r1_zero", "options": {"grader": "math"}})(prompt("42"), text).correct is True


@pytest.mark.parametrize("use", ["r1_zero", "question_only", "boxed"])
def test_an_unknown_grader_is_refused_before_any_rollout(use: str) -> None:
    with refused(ConfigError, "'maths'", "'math'", key="reward.grader", code="config.value"):
        make_reward({"use": use, "options": {"grader": "maths"}})


def test_question_only_takes_the_last_box_anywhere() -> None:
    assert question_only(prompt("42"), rollout(r"\boxed{1} \boxed{42}")).kind == "correct"
    assert question_only(prompt("42"), rollout(r"\boxed{42}</think>")).kind == "correct"
    none = question_only(prompt("42"), rollout("42"))
    assert (none.kind, none.reward, none.parts) == ("unparsable", 0.0, {"answer": 0.0, "format": 0.0})


def test_boxed_wants_its_box_after_the_reasoning() -> None:
    assert boxed(prompt("42"), rollout(r"hm</think> \boxed{42}"), grader="strict").kind == "correct"
    assert boxed(prompt("42"), rollout(r"\boxed{42}</think>"), grader="strict").kind == "unparsable"
    assert boxed(prompt("42"), rollout(r"still thinking \boxed{42}"), grader="strict").kind == "unparsable"
    assert boxed(prompt("42", text="Q"), rollout(r"no tags \boxed{42}"), grader="strict").kind == "correct"


@pytest.mark.parametrize(
    ("text", "gold", "kind"),
    [
        ("r</think>so\n#### 1,234", "1234", "correct"),
        ("r</think>so\n#### $1,234.00\nbye 7", "work\n#### 1,234", "correct"),
        ("r</think>it is 1234.", 1234, "correct"),
        ("r</think>1234 and then 5", 1234, "wrong"),
        ("r</think>#### none", 1234, "unparsable"),
        ("r</think>#### Step 1: 5 + 6\nso it is 1234.", 1234, "correct"),  # a heading of Markdown
        ("r</think>#### Answer\nIt is 1234", 1234, "correct"),
        ("r</think>#### Answer\nIt is 1234", 5, "wrong"),
        ("r</think>#### 1234\n#### Notes: 5 of them", 1234, "correct"),
        ("r</think>#### 1234\n#### 5", 1234, "wrong"),
        ("r</think>#### **$1,234**\nbye 7", 1234, "correct"),
        ("r</think>#### -.5", "-1/2", "correct"),
        ("r</think>####1234", 1234, "correct"),
        ("r</think>#### −1234\nbye 7", -1234, "correct"),
        ("r</think>#### €1234\nbye 7", 1234, "correct"),
        ("r</think>#### 18 dollars for 9 eggs", 18, "correct"),
        ("r</think>#### 18 dollars for 9 eggs", 9, "wrong"),
        ("r</think>#### 5 + 13 = 18 eggs", 18, "correct"),
        ("r</think>#### 18 (= 2 * 9)", 18, "correct"),
        ("r</think>#### 1. Eggs\n16-7=9\n#### 2. Money\nShe makes $18.", 18, "correct"),
        ("r</think>#### 18. So she has enough.", 18, "correct"),
        ("r</think>none", 1234, "unparsable"),
        ("1234", 1234, "unparsable"),  # the reasoning never ended
    ],
)
def test_gsm8k(text: str, gold: Any, kind: str) -> None:
    assert gsm8k(prompt(gold), rollout(text)).kind == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("<think>r</think>\n<answer>\n\\frac{1}{2}\n</answer>", "correct"),
        (r"<think>r</think><answer>\boxed{0.5}</answer> 7", "correct"),
        ("r</think><answer>1</answer> no, <answer>1/2</answer>", "correct"),
        ("<think>r</think> it is 1/2", "correct"),  # without a tag, the last number
        ("<think>r</think> <answer>1</answer> 1/2", "wrong"),
        ("<think>r</think> <answer></answer> 1/2", "unparsable"),
        (r"<answer>\boxed{1/2</answer>", "unparsable"),
        ("<think>r</think> half", "unparsable"),
    ],
)
def test_tagged_reads_the_last_tag_or_else_the_last_number(text: str, kind: str) -> None:
    assert tagged(prompt(r"\frac12"), rollout(text), grader="math").kind == kind


@pytest.mark.parametrize("reward", [numeric, gsm8k])
@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [
        ("3 1/2", "3.5", "0.5"),
        ("3½", "7/2", "3"),
        (r"\frac{3}{4}", "0.75", "4"),
        ("x = –5", "-5", "5"),
        ("‑5", "-5", "5"),
        (r"1{,}000", "1000", "0"),
        (r"1\,000", "1,000", "0"),
        ("25 m^2", "25", "2"),
        ("it is −5", "−5", "5"),
    ],
)
def test_a_number_is_read_whole(reward: Any, text: str, right: str, wrong: str) -> None:
    assert reward(prompt(right, "Q"), rollout(text)).correct is True
    assert reward(prompt(wrong, "Q"), rollout(text)).correct is False


@pytest.mark.parametrize(("text", "gold"), [("2^{10}", "10"), ("2^{10}", "2"), ("2⁵", "5"), ("10^-3", "-3")])
def test_a_power_is_not_its_exponent_or_its_base(text: str, gold: str) -> None:
    assert numeric(prompt(gold, "Q"), rollout(text)).correct is False


def test_numeric_is_exact_without_a_tolerance() -> None:
    third = rollout("r</think> <answer>0.333</answer> in 7 steps")
    assert numeric(prompt("1/3"), third).kind == "wrong"
    assert numeric(prompt("1/3"), third, relative_tolerance=0.01).kind == "correct"
    assert numeric(prompt("100"), rollout("r</think>103"), relative_tolerance=0.03).kind == "correct"
    assert numeric(prompt("0.3330"), third).kind == "correct"
    assert numeric(prompt("0"), rollout("r</think>0.001"), relative_tolerance=0.5).kind == "wrong"
    with refused(ConfigError, -1, key="reward.relative_tolerance", code="config.value"):
        make_reward({"use": "numeric", "options": {"relative_tolerance": -1}})
