"""Rewards for short completions; expected values by hand."""

from __future__ import annotations

import numpy as np
import pytest

from refusals import refused
from winnow.errors import ConfigError
from winnow.records import Prompt, Rollout
from winnow.rewards.compose import make_reward
from winnow.rewards.format import length, overlong

PROMPT = Prompt(id="p", tokens=np.zeros(1, np.int64), text="Q", answer="42", task="t")


def of(tokens):
    return Rollout(
        index=0, tokens=np.zeros(tokens, np.int64), logprobs=np.zeros(tokens), text="42", finish="stop", version=0
    )


@pytest.mark.parametrize(
    ("tokens", "punishment"),
    [(0, 0.0), (16384, 0.0), (16385, -1 / 4096), (18432, -0.5), (20480, -1.0), (20481, -1.0), (40000, -1.0)],
)
def test_the_soft_punishment_with_the_numbers_of_its_paper(tokens, punishment):
    """L_max is 20480 and L_cache 4096: 0 up to 16384 tokens, and from there 1 / 4096 less for each further token."""
    outcome = overlong(PROMPT, of(tokens), limit_tokens=20480, slope_tokens=4096)
    assert outcome.reward == punishment
    assert outcome.correct is (tokens <= 16384)
    assert length(PROMPT, of(tokens), limit_tokens=20480, slope_tokens=4096).reward == 1.0 + punishment


@pytest.mark.parametrize(("tokens", "punishment"), [(9, 0.0), (10, 0.0), (11, -1.0)])
def test_without_a_slope_the_punishment_is_a_step(tokens, punishment):
    assert overlong(PROMPT, of(tokens), limit_tokens=10, slope_tokens=0).reward == punishment


def test_as_a_part_it_is_subtracted_from_the_reward_of_the_answer():
    parts = [{"use": "question_only"}, {"use": "overlong", "options": {"limit_tokens": 8, "slope_tokens": 4}}]
    outcome = make_reward({"parts": parts})(PROMPT, of(7))
    assert outcome.parts == {"question_only": 0.0, "overlong": -0.75}
    assert outcome.reward == -0.75


def test_a_slope_that_is_longer_than_the_limit_is_refused():
    with refused(ConfigError, 4, 5, key="reward.slope_tokens", code="config.combination"):
        make_reward({"use": "overlong", "options": {"limit_tokens": 4, "slope_tokens": 5}})
