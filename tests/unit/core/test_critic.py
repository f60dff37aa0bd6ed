from __future__ import annotations

import math

import numpy as np
import pytest

from winnow.core.critic import describe_values
from winnow.metrics import check
from winnow.records import Group, Outcome, Prompt, Rollout

RIGHT = Outcome(reward=1.0, correct=True, kind="correct")
WRONG = Outcome(reward=0.0, correct=False, kind="wrong")
FAILED = Outcome(reward=math.nan, correct=None, kind="failed", cause="timeout")
NAN = math.nan


def rollout(index, length, trainable=None):
    mask = None if trainable is None else np.array(trainable)
    tokens, logprobs = np.arange(length), np.zeros(length)
    return Rollout(index=index, tokens=tokens, logprobs=logprobs, text="", finish="stop", version=0, trainable=mask)


def group(outcomes, *, masks=None, **numbers):
    """One rollout per outcome, as long as its values; `numbers` are lists of lists."""
    filled = {name: tuple(np.array(of, dtype=float) for of in lists) for name, lists in numbers.items() if lists}
    lengths = [len(of) for of in filled["values"]] if "values" in filled else [2] * len(outcomes)
    masks = masks or [None] * len(outcomes)
    rollouts = tuple(rollout(i, length, mask) for i, (length, mask) in enumerate(zip(lengths, masks, strict=True)))
    prompt = Prompt(id="p", tokens=np.array([1]), text="", answer="", task="t")
    return Group(prompt=prompt, rollouts=rollouts, outcomes=tuple(outcomes), **filled)


def test_of_two_rollouts_by_hand():
    """Without a discount the returns are 1, 1 of the right rollout and 0, 0 of the wrong one: variance 1/4. They miss
    the values by 0.5, 0, -0.5 and 0, whose mean is 0 and whose variance is 1/8.
    """
    metrics = describe_values(
        [group([RIGHT, WRONG], values=[[0.5, 1.0], [0.5, 0.0]], returns=[[1.0, 1.0], [0.5, 0.5]])], gamma=1.0
    )
    check(metrics)
    assert metrics == pytest.approx(
        {
            "critic/explained_variance": 1 - (1 / 8) / (1 / 4),
            "critic/value_mean": 0.5,
            "critic/return_mean": 0.75,
            "critic/return_std": 0.25,
            "budget/tokens_valued": 4.0,
        }
    )


def test_the_returns_that_are_to_be_explained_are_discounted():
    """With gamma 1/2 a reward of 1 on the second token is worth 1/2 before the first one, as these values predict."""
    exact = [group([RIGHT], values=[[0.5, 1.0]])]
    assert describe_values(exact, gamma=0.5)["critic/explained_variance"] == pytest.approx(1.0)
    assert math.isnan(describe_values(exact, gamma=1.0)["critic/explained_variance"])  # all returns are 1


def test_a_constant_explains_nothing_and_the_opposite_less_than_nothing():
    outcomes = [RIGHT, WRONG]
    constant = describe_values([group(outcomes, values=[[0.7, 0.7], [0.7, 0.7]])], gamma=1.0)
    opposite = describe_values([group(outcomes, values=[[0.0, 0.0], [1.0, 1.0]])], gamma=1.0)
    assert constant["critic/explained_variance"] == pytest.approx(0.0)
    assert opposite["critic/explained_variance"] == pytest.approx(1 - 1 / 0.25)  # misses of 1 and -1: variance 1


def test_rewards_per_token_are_what_returns_are_sums_of():
    """A reward of 0.25 is taken off the first token's, so the returns are 0.75 and 1."""
    penalised = group([RIGHT], values=[[0.75, 1.0]], token_rewards=[[-0.25, 1.0]])
    assert describe_values([penalised], gamma=1.0)["critic/explained_variance"] == pytest.approx(1.0)


def test_a_critic_that_is_not_trained_has_no_metrics_of_returns():
    metrics = describe_values([group([RIGHT, WRONG], values=[[1.0], [0.0]])], gamma=1.0)
    assert set(metrics) == {"critic/explained_variance", "critic/value_mean", "budget/tokens_valued"}


def test_rollouts_without_values_or_without_a_verdict_are_left_out():
    """A rollout without values (not kept, say), and a failed one, although a critic function returned values for it."""
    outcomes = [RIGHT, RIGHT, FAILED, WRONG]
    values = [[0.5, 0.5], [NAN, NAN, NAN], [9.0], [0.0]]
    returns = [[1.0, 1.0], [NAN, NAN, NAN], [NAN], [0.0]]
    metrics = describe_values([group(outcomes, values=values, returns=returns)], gamma=1.0)
    assert metrics["budget/tokens_valued"] == 3
    assert metrics["critic/value_mean"] == pytest.approx(1 / 3)
    assert metrics["critic/return_mean"] == pytest.approx(2 / 3)
    assert metrics["critic/explained_variance"] == pytest.approx(1 - (1 / 18) / (2 / 9))


def test_tokens_of_a_tool_have_no_part_in_values_and_are_counted_apart():
    """The second token is a tool's: its value does not count, and budget/environment_tokens counts the token."""
    alone = group([RIGHT, WRONG], values=[[1.0, 77.0], [0.0, 77.0]], masks=[[True, False], [True, False]])
    metrics = describe_values([alone], gamma=1.0)
    assert metrics == {
        "critic/explained_variance": 1.0,
        "critic/value_mean": 0.5,
        "budget/tokens_valued": 2.0,
    }


def test_several_groups_are_one_sample_of_tokens():
    """Each group's values are its mean: they explain nothing within a group, and all between the two."""
    easy = group([RIGHT, RIGHT], values=[[1.0], [1.0]])
    hard = group([WRONG, WRONG], values=[[0.0], [0.0]])
    assert describe_values([easy, hard], gamma=1.0)["critic/explained_variance"] == 1.0


def test_a_step_without_values_has_no_metrics_of_values():
    assert describe_values([], gamma=1.0) == {}
    assert describe_values([group([RIGHT])], gamma=1.0) == {}
    unread = group([RIGHT, FAILED], values=[[NAN, NAN], [NAN]])
    assert describe_values([unread], gamma=1.0) == {"budget/tokens_valued": 0.0}


def test_values_that_are_nan_at_some_tokens_make_the_metrics_nan():
    metrics = describe_values([group([RIGHT, WRONG], values=[[NAN, 1.0], [0.0, 0.0]])], gamma=1.0)
    assert math.isnan(metrics["critic/explained_variance"])
    assert math.isnan(metrics["critic/value_mean"])
    assert metrics["budget/tokens_valued"] == 4


def test_rollouts_that_the_reference_has_not_read_are_left_out():
    penalised = group(
        [RIGHT, WRONG, WRONG],
        values=[[0.75, 1.0], [0.0, 0.0], [0.5, 0.5]],
        token_rewards=[[-0.25, 1.0], [0.0, 0.0], [NAN, NAN]],
    )
    metrics = describe_values([penalised], gamma=1.0)
    assert metrics["critic/explained_variance"] == pytest.approx(1.0)
    assert metrics["budget/tokens_valued"] == 4
