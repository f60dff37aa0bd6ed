"""Advantages and returns of a value model by hand: gamma 0.9 and lambda 0.8 by default, so a residual
counts 0.72 times as much one trained token earlier.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refusals import refused
from winnow.algos.advantage import raw
from winnow.algos.gae import (
    check_values,
    explained_variance,
    gae,
    monte_carlo_returns,
    token_rewards,
    value_targets,
    with_kl,
)
from winnow.config_file import validate
from winnow.errors import ConfigError
from winnow.options import bind
from winnow.records import Group
from winnow.registry import resolve
from winnow.testing import group_of

by_hand = functools.partial(gae, gamma=0.9, lam=0.8, whiten=False)
NAN = float("nan")


def valued(rewards, values, *, keep=None, trainable=None, prompt="p") -> Group:
    """A group whose rollouts are as long as their values; `trainable` has a mask or None for each of them."""
    group = group_of(rewards, lengths=[len(v) for v in values], prompt=prompt)
    masks = [None if mask is None else np.array(mask, bool) for mask in trainable or [None] * len(rewards)]
    rollouts = tuple(
        dataclasses.replace(rollout, trainable=mask) for rollout, mask in zip(group.rollouts, masks, strict=True)
    )
    kept = np.isin(np.arange(len(rewards)), range(len(rewards)) if keep is None else keep)
    return dataclasses.replace(group, rollouts=rollouts).fill(
        keep=kept, values=tuple(np.array(v, dtype=float) for v in values)
    )


# Residuals and advantages, last token first:
#   three tokens, reward 1: d = 1 - 0.6 = 0.4; 0.9 * 0.6 - 0.4 = 0.14; 0.9 * 0.4 - 0.5 = -0.14
#                           A = 0.4; 0.14 + 0.72 * 0.4 = 0.428; -0.14 + 0.72 * 0.428 = 0.16816
#   one token, reward 0:    A = d = -0.3
#   two tokens, reward 0.5: d = 0.5 - 0.7 = -0.2; 0.9 * 0.7 - 0.2 = 0.43;  A = -0.2; 0.43 - 0.72 * 0.2 = 0.286
THREE = [
    valued([1.0, 0.0], [[0.5, 0.4, 0.6], [0.3]], prompt="p0"),
    valued([0.5], [[0.2, 0.7]], prompt="p1"),
]


def numbers(per_group):
    return [[list(array) for array in credit] for credit in per_group]


def close(found, expected):
    return [[pytest.approx(row, abs=1e-15, rel=1e-14) for row in group] for group in expected] == numbers(found)


def test_three_rollouts_of_unequal_length():
    assert close(by_hand(THREE), [[[0.16816, 0.428, 0.4], [-0.3]], [[0.286, -0.2]]])


def test_the_residual_at_lambda_0_and_the_return_less_the_value_at_1():
    assert close(by_hand(THREE, lam=0.0), [[[-0.14, 0.14, 0.4], [-0.3]], [[0.43, -0.2]]])
    discounted = [[[0.81 - 0.5, 0.9 - 0.4, 1 - 0.6], [-0.3]], [[0.45 - 0.2, 0.5 - 0.7]]]
    assert close(by_hand(THREE, lam=1.0), discounted)


def test_without_values_discount_and_decay_it_is_raw():
    groups = [valued([0.3, -2.0], [[0.0] * 5, [0.0]], keep=[0]), valued([1.0, 0.7], [[0.0] * 3, [0.0] * 2])]
    for found, rewards in zip(gae(groups, gamma=1.0, lam=1.0, whiten=False), raw(groups), strict=True):
        assert [set(array) for array in found] == [{reward} for reward in rewards]


def test_a_long_rollout_is_the_recursion():
    """Against the equation as it is written, over more tokens than any power of two that sums are made of."""
    draw = np.random.default_rng(3)
    values, rewards = draw.normal(size=1337), draw.normal(size=1337)
    group = valued([0.0], [values]).fill(token_rewards=(rewards,))
    expected, behind, worth = np.zeros(1337), 0.0, 0.0
    for t in range(1336, -1, -1):
        behind = rewards[t] + 0.97 * worth - values[t] + 0.97 * 0.9 * behind
        expected[t], worth = behind, values[t]
    ((found,),) = gae([group], gamma=0.97, lam=0.9, whiten=False)
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_tokens_that_are_not_the_policy_s_are_passed_over():
    """Two of five are: d = 1 - 0.4 = 0.6 and 0.9 * 0.4 - 0.5 = -0.14, A = 0.6 and -0.14 + 0.72 * 0.6 = 0.292."""
    mask = [True, False, True, False, False]
    group = valued([1.0], [[0.5, 9.0, 0.4, 7.0, 8.0]], trainable=[mask])
    assert close(by_hand([group]), [[[0.292, 0.0, 0.6, 0.0, 0.0]]])
    assert token_rewards(group)[0].tolist() == [0, 0, 1, 0, 0]
    assert value_targets(group, gamma=0.9, lam=0.8)[0] == pytest.approx([0.792, 0, 1, 0, 0])
    assert monte_carlo_returns(group, gamma=0.9)[0] == pytest.approx([0.9, 0, 1, 0, 0])


def test_rollouts_that_begin_with_them_are_only_them_or_are_empty():
    masks = [[False, True], [False, False], []]
    group = valued([1.0, 1.0, 1.0], [[5.0, 0.25], [5.0, 6.0], []], trainable=masks)
    assert close(by_hand([group]), [[[0.0, 0.75], [0.0, 0.0], []]])
    assert [target.tolist() for target in value_targets(group, gamma=0.9, lam=0.5)] == [[0, 1], [0, 0], []]


def test_what_was_dropped_gets_nothing_and_is_not_read():
    group = valued([1.0, 1.0], [[0.5, 0.4, 0.6], [NAN, NAN]], keep=[0])
    assert close(by_hand([group]), [[[0.16816, 0.428, 0.4], [0.0, 0.0]]])
    assert np.isfinite(gae([group])[0][0]).all()


def test_advantages_before_selection_or_values_are_refused():
    with pytest.raises(ValueError, match="keep"):
        gae([group_of([1.0])])
    with pytest.raises(ValueError, match="values"):
        gae([group_of([1.0], keep=[0])])


# Lambda by the length of a rollout --------------------------------------------------------------------------------


def test_lambda_by_length():
    """alpha 0.5: of 4 tokens 1 - 1 / 2, of 8 tokens 1 - 1 / 4; the reward reaches t tokens back by lambda^t."""
    group = valued([1.0, 1.0], [[0.0] * 4, [0.0] * 8])
    (found,) = gae([group], lam="length", alpha=0.5, whiten=False)
    assert found[0].tolist() == [0.125, 0.25, 0.5, 1.0]
    assert found[1][-4:].tolist() == [0.75**3, 0.75**2, 0.75, 1.0]


def test_lambda_by_length_is_never_below_0_and_counts_trained_tokens():
    """alpha 0.05: 20 tokens and fewer have lambda 0, 40 have 0.5."""
    trained = [True] * 20 + [False] * 20
    group = valued([1.0, 1.0, 1.0], [[0.0] * 10, [0.0] * 40, [0.0] * 40], trainable=[None, trained, None])
    (found,) = gae([group], lam="length", whiten=False)
    assert found[0].tolist() == [0.0] * 9 + [1.0]
    assert found[1].tolist() == [0.0] * 19 + [1.0] + [0.0] * 20
    assert found[2][-3:].tolist() == [0.25, 0.5, 1.0]


# Whitening --------------------------------------------------------------------------------------------------------


def test_whitening_is_over_trained_tokens_of_kept_rollouts_alone():
    """A is 1, 2 and 3 there: mean 2, standard deviation 1. A dropped one has 100, tokens of another hand would have
    more.
    """
    masks = [[True], None, [False, True, False]]
    first = valued([1.0, 100.0, 2.0], [[0.0], [0.0], [-50.0, 0.0, 70.0]], keep=[0, 2], trainable=masks)
    second = valued([2.0], [[-1.0]])
    assert numbers(gae([first, second], lam=0.5)) == [
        [[pytest.approx(-1)], [0], [0, pytest.approx(0, abs=1e-7), 0]],
        [[pytest.approx(1)]],
    ]


def test_whitening_by_hand():
    """Over the six tokens of the three rollouts, whose advantages add up to 0.78216; the deviation is the sample's."""
    plain = np.array([0.16816, 0.428, 0.4, -0.3, 0.286, -0.2])
    mean = 0.78216 / 6
    spread = (((plain - mean) ** 2).sum() / 5) ** 0.5
    found = gae(THREE, gamma=0.9, lam=0.8)
    assert np.concatenate([a for credit in found for a in credit]) == pytest.approx((plain - mean) / spread, rel=1e-6)


@pytest.mark.parametrize("rewards", [[1.0], [1.0, 1.0], []])
def test_where_nothing_differs_whitening_leaves_nothing(rewards):
    """All solved, and an untrained value model: rounding must not become an advantage of noise."""
    group = valued(rewards, [[0.1 + 0.2], [0.3]][: len(rewards)])
    assert numbers(gae([group])) == [[[0.0]] * len(rewards)]
    assert numbers(gae([])) == []


# What values are taught -------------------------------------------------------------------------------------------


def test_values_are_taught_with_a_lambda_of_their_own_before_whitening():
    """A + V. At lambda 1 what the rollout was paid, discounted: 1, 0.9 and 0.81, whatever the values are."""
    group = THREE[0]
    assert value_targets(group, gamma=0.9, lam=0.8)[0] == pytest.approx([0.66816, 0.828, 1.0])
    assert value_targets(group, gamma=0.9, lam=1.0)[0] == pytest.approx([0.81, 0.9, 1.0])
    assert value_targets(group, gamma=0.9, lam=0.0)[0] == pytest.approx([0.36, 0.54, 1.0])
    assert value_targets(group, gamma=0.9, lam=0.8)[1] == pytest.approx([0.0])


def test_monte_carlo_returns_need_no_values():
    group = group_of([1.0, -0.5], lengths=[3, 2])
    assert [returns.tolist() for returns in monte_carlo_returns(group, gamma=1.0)] == [[1, 1, 1], [-0.5, -0.5]]
    assert monte_carlo_returns(group, gamma=0.9)[0] == pytest.approx([0.81, 0.9, 1.0])


def test_what_no_value_model_has_read_is_taught_nothing():
    group = valued([1.0, 1.0], [[0.5, 0.5], [NAN, NAN]], keep=[0])
    read, unread = value_targets(group, gamma=1.0, lam=1.0)
    assert read.tolist() == [1.0, 1.0]
    assert np.isnan(unread).all()


def test_explained_variance():
    """Var(returns) = 1/4; what values that are off by 1/4 to either side leave is 1/16."""
    returns = np.array([1.0, 0.0, 1.0, 0.0])
    assert explained_variance(returns, np.array([0.75, 0.25, 0.75, 0.25])) == 0.75
    assert explained_variance(returns, returns + 3.0) == 1.0
    assert explained_variance(returns, np.full(4, 0.7)) == pytest.approx(0.0)
    assert explained_variance(returns, 1.0 - returns) == -3.0
    assert np.isnan(explained_variance(np.full(3, 0.1), np.array([0.0, 1.0, 2.0])))
    assert np.isnan(explained_variance(np.zeros(0), np.zeros(0)))


# Rewards per token ------------------------------------------------------------------------------------------------


def test_a_likelier_token_than_the_reference_s_costs_reward():
    """log(p / p_reference) 0.5 and -1.0, times 0.1; the second of three is not the policy's."""
    mask = [True, False, True]
    group = valued([1.0, 0.0], [[0.0] * 3, [0.0]], trainable=[mask, None])
    found = with_kl(group, (np.array([0.5, 9.0, -1.0]), np.array([0.2])), 0.1)
    assert found[0] == pytest.approx([-0.05, 0.0, 1.1])
    assert found[1] == pytest.approx([-0.02])
    filled = group.fill(token_rewards=found)
    assert gae([filled], lam=1.0, whiten=False)[0][0] == pytest.approx([1.05, 0.0, 1.1])
    assert monte_carlo_returns(filled, gamma=0.5)[0] == pytest.approx([-0.05 + 0.55, 0.0, 1.1])


# What a user's function answers -----------------------------------------------------------------------------------


def test_values_come_as_float64_whatever_they_were():
    group = group_of([1.0, 0.0], lengths=[2, 1], keep=[0])
    (found,) = check_values([[torch.tensor([1, 2]), [NAN]]], [group])
    assert [array.dtype for array in found] == [np.float64] * 2
    assert found[0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("result", "named"),
    [
        (None, ("None", 1)),
        ([], ("[]", 1)),
        ([[0.5, 0.5]], (2, "'p'")),
        ([[[0.5], [0.5]]], (2, "'p'")),
        ([[[0.5, 0.5]]], (2, "'p'")),
        ([[["a", "b"], [0.5]]], (2, "'p'")),
        ([[[0.5, NAN], [0.5]]], (2, "'p'")),
        ([[torch.ones(2, requires_grad=True), [0.5]]], (2, "'p'")),
        ([7], (7, 2, "'p'")),
    ],
)
def test_results_that_are_not_values_are_refused(result, named):
    with refused(ConfigError, *named, key="critic", code="config.member_result"):
        check_values(result, [group_of([1.0, 0.0], lengths=[2, 1], keep=[0])])


# Order, options ---------------------------------------------------------------------------------------------------


def shuffled(group, order):
    """The group with its rollouts in another order, `keep` and values with them."""
    return group.take(np.array(order))


def drawn(seed) -> list[Group]:
    draw = np.random.default_rng(seed)
    groups = []
    for place in range(3):
        lengths = draw.integers(0, 6, size=4)
        masks = [draw.random(length) < 0.8 for length in lengths]
        values = [draw.normal(size=length) for length in lengths]
        rewards, keep = draw.normal(size=4), np.flatnonzero(draw.random(4) < 0.7)
        groups.append(valued(rewards, values, keep=keep, trainable=masks, prompt=f"p{place}"))
    return groups


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32), first=st.permutations(range(3)), within=st.permutations(range(4)), whiten=st.booleans()
)
def test_the_order_of_groups_and_rollouts_changes_nothing(seed, first, within, whiten):
    groups = drawn(seed)
    found = gae(groups, gamma=0.9, lam="length", alpha=0.5, whiten=whiten)
    other = gae([shuffled(groups[g], within) for g in first], gamma=0.9, lam="length", alpha=0.5, whiten=whiten)
    for place, g in enumerate(first):
        for row, i in enumerate(within):
            assert other[place][row] == pytest.approx(found[g][i], rel=1e-9, abs=1e-9 if whiten else 0)


@pytest.mark.parametrize(
    ("option", "value"), [("lam", 1.01), ("lam", -0.1), ("lam", "len"), ("gamma", 0.0), ("gamma", 1.5), ("alpha", 0)]
)
def test_options_outside_their_range_are_refused(option, value):
    with refused(ConfigError, key=f"advantage.{option}"):
        bind(resolve("advantage", "gae"), {option: value}, key="advantage")
    bind(resolve("advantage", "gae"), {"lam": "length", "gamma": 1.0, "alpha": 0.05}, key="advantage")


def test_the_page_s_configuration_is_one():
    page = (Path(__file__).parents[2] / "docs" / "ppo.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    config = validate(tomllib.loads(block))
    assert config.critic is not None
    bind(resolve("advantage", config.advantage.use), config.advantage.options, key="advantage")
