"""Selectors against hand-computed answers, published golden vectors and brute force."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
import pytest

from winnow.algos.advantage import dr_grpo
from winnow.algos.selectors import (
    chain,
    finished,
    keep_all,
    max_reward,
    max_variance,
    percentile,
    random,
    threshold,
)
from winnow.budget.selection import kept_size, prompts_by_variance
from winnow.records import Group, Outcome, Prompt, Rollout
from winnow.seeds import Rng

RNG = Rng(("test",))


def group_of(rewards: list[float], prompt_id: str = "p", order: list[int] | None = None) -> Group:
    prompt = Prompt(id=prompt_id, tokens=np.array([1]), text="", answer="", task="test")
    order = list(range(len(rewards))) if order is None else order
    rollouts = [
        Rollout(index=i, tokens=np.array([2]), logprobs=np.zeros(1), text="", finish="stop", version=0) for i in order
    ]
    outcomes = tuple(Outcome(reward=rewards[i], correct=rewards[i] >= 1, kind="correct") for i in order)
    return Group(prompt=prompt, rollouts=tuple(rollouts), outcomes=outcomes)


# Indices kept for the golden vectors of the PODS report: rewards, m, the multiset of rewards that is kept.
GOLDEN = [
    ([0.2, 0.4, 0.6, 0.8], 2, [0.2, 0.8]),
    ([0, 0, 0, 0, 0, 0, 1, 1], 4, [0, 0, 1, 1]),
    ([0, 1, 1, 1, 1, 1, 1, 1], 4, [0, 1, 1, 1]),
    ([0, 5, 9, 9.5, 10], 4, [0, 9, 9.5, 10]),  # three of the high end: "half from each end" is wrong here
    ([0, 0.9, 0.95, 1, 1], 3, [0, 1, 1]),
]


@pytest.mark.parametrize(("rewards", "m", "kept"), GOLDEN)
def test_max_variance_golden_vectors(rewards, m, kept):
    mask = max_variance(group_of(rewards), RNG, keep_per_prompt=m)
    assert sorted(np.array(rewards)[mask]) == kept


def cut(group: Group, places: list[int]) -> Group:
    """The group whose rollouts at these places were cut off."""
    finish = {True: "length", False: "stop"}
    rollouts = [dataclasses.replace(one, finish=finish[i in places]) for i, one in enumerate(group.rollouts)]
    return dataclasses.replace(group, rollouts=tuple(rollouts))


def test_finished_leaves_out_what_was_cut_off_whatever_it_earned():
    group = cut(group_of([1, 0, 1, 0]), [0, 3])
    assert finished(group, RNG).tolist() == [False, True, True, False]
    assert finished(cut(group, [0, 1, 2, 3]), RNG).tolist() == [False] * 4
    assert finished(group_of([]), RNG).tolist() == []


def test_finished_before_another_selector_and_in_the_baseline_or_not():
    """Of rewards 0, 0, 1, 1, 1 the first and the last were cut off. Max-variance keeps the 0 and a 1 of the others."""
    group = cut(group_of([0, 0, 1, 1, 1]), [0, 4])
    keep = chain([finished, functools.partial(max_variance, keep_per_prompt=2)])(group, RNG)
    assert sorted(group.rewards[keep]) == [0, 1]
    assert not keep[[0, 4]].any()
    kept = group.fill(keep=finished(group, RNG))
    (over_kept,), (over_all,) = dr_grpo([kept]), dr_grpo([kept], statistics="group")
    assert over_kept == pytest.approx([0, -2 / 3, 1 / 3, 1 / 3, 0])
    assert over_all == pytest.approx([0, -0.6, 0.4, 0.4, 0])  # the mean of all five is 0.6


def test_max_variance_equals_brute_force():
    draw = np.random.default_rng(0)
    for trial in range(1000):
        n = int(draw.integers(1, 11))
        m = int(draw.integers(1, n + 1))
        style = trial % 4
        if style == 0:
            rewards = draw.normal(size=n)
        elif style == 1:
            rewards = draw.integers(-2, 3, size=n).astype(float)  # many ties, negative rewards
        elif style == 2:
            rewards = draw.integers(0, 2, size=n).astype(float)  # binary
        else:
            rewards = 1e6 + draw.normal(size=n)  # cancellation
        mask = max_variance(group_of(list(rewards)), RNG, keep_per_prompt=m)
        best = max(np.var(rewards[list(s)]) for s in itertools.combinations(range(n), m))
        assert mask.sum() == m
        assert np.var(rewards[mask]) == pytest.approx(best, rel=1e-9, abs=1e-12)


def test_binary_rewards_keep_the_published_number_of_positives():
    """Theorem 2 of PODS in closed form: min(c, max(m/2, m - (n - c))) for c correct of n, m even."""
    for n in (4, 8, 16, 33, 64):
        for c in range(n + 1):
            rewards = [1.0] * c + [0.0] * (n - c)
            group = group_of(rewards)
            for m in range(2, n + 1, 2):
                mask = max_variance(group, RNG, keep_per_prompt=m)
                assert np.array(rewards)[mask].sum() == min(c, max(m // 2, m - (n - c))), (n, m, c)


@pytest.mark.parametrize("selector", [max_variance, max_reward, random])
def test_a_permutation_of_rollouts_permutes_the_mask(selector):
    rewards = [0, 0, 1, 1, 0, 1, 0.5, 0.5]
    straight = selector(group_of(rewards), RNG, keep_per_prompt=4)
    order = [5, 0, 7, 2, 4, 1, 6, 3]
    shuffled = selector(group_of(rewards, order=order), RNG, keep_per_prompt=4)
    assert shuffled.tolist() == straight[order].tolist()


def test_ties_are_not_broken_by_position():
    """Among 16 equal rollouts the kept ones differ from prompt to prompt."""
    kept = {tuple(max_variance(group_of([1.0] * 16, f"p{i}"), RNG, keep_per_prompt=4)) for i in range(8)}
    assert len(kept) > 4


def test_max_reward_keeps_the_top():
    mask = max_reward(group_of([0.1, 0.9, 0.5, 0.7]), RNG, keep_per_prompt=2)
    assert mask.tolist() == [False, True, False, True]


def test_random_is_uniform():
    """Each of 10,000 draws of 2 from 5 hits each rollout equally often: chi-square, 4 degrees of freedom, p > 0.001."""
    group = group_of([0.0] * 5)
    hits = sum(random(group, Rng(("draw", i)), keep_per_prompt=2).astype(int) for i in range(10_000))
    expected = 10_000 * 2 / 5
    chi_square = ((hits - expected) ** 2 / (expected * (1 - 2 / 5))).sum() * (4 / 5)
    assert chi_square < 18.47


def test_kept_size_reads_counts_and_shares():
    assert kept_size(4, 16) == 4
    assert kept_size(4, 3) == 3
    assert kept_size(0.25, 16) == 4
    assert kept_size(0.01, 16) == 1
    assert kept_size(1.0, 7) == 7


def test_a_chain_narrows_down():
    select = chain(
        [
            lambda group, rng: max_reward(group, rng, keep_per_prompt=3),
            lambda group, rng: max_variance(group, rng, keep_per_prompt=2),
        ]
    )
    assert select(group_of([0.0, 0.2, 0.6, 1.0]), RNG).tolist() == [False, True, False, True]


def test_keep_all_keeps_all():
    assert keep_all(group_of([0.0, 1.0]), RNG).all()


def test_percentile_spreads_over_the_ranks():
    """m = 4 of 8: ranks 1, 3, 5, 7."""
    mask = percentile(group_of([0, 10, 20, 30, 40, 50, 60, 70]), RNG, keep_per_prompt=4)
    assert np.flatnonzero(mask).tolist() == [1, 3, 5, 7]
    assert np.flatnonzero(percentile(group_of([3, 1, 2]), RNG, keep_per_prompt=1)).tolist() == [2]


def test_threshold_keeps_a_range():
    assert threshold(group_of([0, 0.5, 1]), RNG, low=0.5).tolist() == [False, True, True]
    assert threshold(group_of([0, 0.5, 1]), RNG, high=0.5).tolist() == [True, True, False]


def fewest_prompts(variances, wanted):
    """The size of the smallest set of prompts whose variances add up to `wanted`, by trying all sets."""
    sizes = [
        size
        for size in range(len(variances) + 1)
        for chosen in itertools.combinations(variances, size)
        if sum(chosen) >= wanted - 1e-12
    ]
    return min(sizes)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("share", "margin"), [(0.9, 0.0), (0.9, 0.01), (0.5, 0.0), (1.0, 0.0), (0.75, 0.1)])
def test_no_smaller_set_of_prompts_has_the_share_of_the_variance(seed, share, margin):
    """RAGEN-2: prompts in falling order of their variance, up to share * sum - margin."""
    rng = np.random.default_rng(seed)
    rewards = [rng.integers(0, 4, size=rng.integers(1, 6)) / 3 for _ in range(7)]
    variances = np.array([own.var(ddof=1) if len(own) > 1 else 0.0 for own in rewards])
    keep = prompts_by_variance(rewards, rng.random(7), share=share, margin=margin)
    wanted = share * variances.sum() - margin
    assert keep.sum() == (fewest_prompts(variances, wanted) if wanted > 0 else 0)
    assert variances[keep].sum() >= min(wanted, variances.sum()) - 1e-12
    assert not keep.any() or variances[keep].min() >= variances[~keep].max(initial=0.0)


def test_prompts_without_a_signal_are_never_kept():
    """0.1 + 0.1 + 0.1 rounds, so that numpy's variance of three equal rewards is above 0."""
    flat, mixed = np.full(3, 0.1), np.array([0.0, 1.0, 1.0])
    ties = np.arange(3.0)
    assert flat.var() > 0
    assert prompts_by_variance([flat, mixed, flat], ties, share=1.0).tolist() == [False, True, False]
    assert not prompts_by_variance([flat, flat, flat], ties, share=1.0).any()
    assert prompts_by_variance([], np.zeros(0), share=1.0).tolist() == []
    alike = np.array([0.3, 0.1 + 0.2])  # one bit apart
    assert not prompts_by_variance([alike, alike], np.arange(2.0), share=0.9).any()


def test_a_batch_with_hardly_any_variance_is_left_out_by_the_margin():
    """Two rewards of 0 and 0.1 have a variance of 0.005; 0.9 of it is below RAGEN's margin of 0.01."""
    rewards = [np.array([0.0, 0.1]), np.zeros(2)]
    assert prompts_by_variance(rewards, np.arange(2.0), share=0.9).tolist() == [True, False]
    assert not prompts_by_variance(rewards, np.arange(2.0), share=0.9, margin=0.01).any()


def test_prompts_of_equal_variance_are_ordered_by_the_ties():
    rewards = [np.array([0.0, 1.0])] * 4
    assert prompts_by_variance(rewards, np.array([3.0, 1.0, 2.0, 0.0]), share=0.5).tolist() == [
        False,
        True,
        False,
        True,
    ]
