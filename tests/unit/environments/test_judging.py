"""A specification is a reward or an environment, and every question about it has an answer for both."""

from __future__ import annotations

import numpy as np
import pytest

from refusals import refused
from winnow.environments.judging import make_judge, named_members, reads, warm
from winnow.errors import ConfigError
from winnow.records import Prompt, Reply, Rollout

GAME = {"environment": "guess_number", "options": {"turns": 2}, "max_turns": 4}
PROMPT = Prompt(id="p", tokens=np.array([1]), text="?<think>", answer="12", task="t")


def rollout(text):
    return Rollout(index=0, tokens=np.zeros(1, int), logprobs=np.zeros(1), text=text, finish="stop", version=0)


def test_a_reward_judges_and_an_environment_answers():
    reward = make_judge({"use": "r1_zero", "options": {}})
    assert reward(PROMPT, rollout("</think> <answer>12</answer>")).reward == 1.0
    assert make_judge(GAME)(PROMPT, rollout("<answer>3</answer>")) == Reply(text="higher")


def test_the_members_of_a_specification():
    assert named_members(GAME) == [("environment", "guess_number")]
    assert named_members({"use": "boxed", "options": {}}) == [("reward", "boxed")]
    assert named_members({"parts": [{"use": "boxed"}, {"use": "format"}]}) == [
        ("reward", "boxed"),
        ("reward", "format"),
    ]


def test_an_environment_reads_texts_alone():
    assert reads(GAME) == frozenset()
    warm(GAME)


@pytest.mark.parametrize(("name", "option", "value"), [("calculator", "calls", -1), ("guess_number", "turns", 0)])
def test_a_number_below_the_least_is_refused(name, option, value):
    with refused(ConfigError, value, key=f"environment.{option}", code="config.value"):
        make_judge({"environment": name, "options": {option: value}, "max_turns": 4})
