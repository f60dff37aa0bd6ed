from __future__ import annotations

import numpy as np
import pytest

from refusals import refused
from winnow.errors import ConfigError
from winnow.records import Prompt, Rollout
from winnow.rewards.compose import make_reward

CASES = {  # text -> the integer that is read
    "12": "12",
    "3 + 9 = 12": "12",
    "The answer is 12.": "12",
    "12, not 13": "13",
    "1,012": "1012",
    "1,2,12": "12",  # a list, not thousands
    "-12": "-12",
    "5-12": "12",
    "5 -12": "-12",
    "x-12": "12",
    "12\n": "12",
    "012": "012",
    "It is −12": "-12",
    "It is ‑12": "-12",
    "0.12": "0.12",
    "2.12": "2.12",
    "12.0": "12.0",
    "1/12": "1/12",
    r"\frac{1}{12}": "1/12",
    "10^12": "10^12",
    "10¹²": "10^{12}",
    "3 cm^12": "3",
    r"1{,}012": "1012",
    "$12": "12",
    "+12": "12",
}


def judged(text, gold="12", finish="stop", **options):
    tokens = np.zeros(1, np.int64)
    prompt = Prompt(id="p", tokens=tokens, text="3 + 9?", answer=gold, task="arithmetic")
    rollout = Rollout(index=0, tokens=tokens, logprobs=np.zeros(1), text=text, finish=finish, version=0)
    return make_reward({"use": "last_integer", "options": options})(prompt, rollout)


@pytest.mark.parametrize(("text", "number"), CASES.items())
def test_the_last_integer_is_the_answer(text, number):
    outcome = judged(text)
    assert (outcome.answer, outcome.correct) == (number, number == "12")
    assert outcome.reward == (1.1 if number == "12" else 0.1)
    assert outcome.parts == {"answer": float(number == "12"), "ended": 0.1}


def test_a_response_that_was_cut_off_is_wrong():
    outcome = judged("12", finish="length")
    assert (outcome.reward, outcome.correct, outcome.kind) == (0.0, False, "wrong")


@pytest.mark.parametrize(("finish", "reward"), [("stop", 0.1), ("length", 0.0)])
def test_a_response_without_an_integer_has_no_answer(finish, reward):
    outcome = judged("twelve", finish=finish)
    assert (outcome.kind, outcome.reward) == ("unparsable", reward)


def test_the_gold_may_be_a_number_a_box_or_several():
    assert [
        judged("12", gold=gold).correct for gold in (12, r"\boxed{12}", ["11", "12"], " 12 ", 12.0, "+12", "13")
    ] == [
        *[True] * 6,
        False,
    ]
    assert [judged("1,012", gold=gold).correct for gold in ("1,012", 1012, "1,013")] == [True, True, False]


def test_the_reward_for_an_end_can_be_omitted_and_never_exceeds_that_of_an_answer():
    assert judged("13", ended=0.0).reward == 0.0
    for bad in (-0.1, 1.0, float("nan")):
        with refused(ConfigError, "ended", code="config.value"):
            judged("12", ended=bad)


def test_a_gold_with_leading_zeros_is_right_as_it_is_written_and_without_them():
    """As in AIME."""
    pairs = [("073", "073"), ("73", "073"), ("073", "73"), ("5/2", "5/2")]
    assert [judged(text, gold=gold).correct for text, gold in pairs] == [True, True, False, False]
