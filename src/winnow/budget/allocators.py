"""How many rollouts each prompt gets: (statistics of G prompts, a budget of rollouts) -> [G] counts.

Counts are never negative, and their sum is the budget (or G times the maximum, where that is less). Each function is an
allocator of winnow, with the range of each option in its annotation. The arithmetic is that of allocation.py. Every
function raises ValueError for an option outside its range, for a `minimum` above a `maximum` that is not 0, for a
negative budget, and for statistics outside their range.
"""

from __future__ import annotations

import numpy as np

from winnow.bounds import AtLeastOne, AtLeastThree, AtLeastTwo, Finite, Natural, NotNegative, Positive, ZeroToOne
from winnow.budget.allocation import (
    DR_GRPO,
    KNAPSACK,
    MEAN,
    RLOO,
    PromptValue,
    allocate_greedily,
    apportion,
    cures_variance,
    divide_evenly,
    gvm_weights,
)
from winnow.budget.arguments import check_bounds, ranged
from winnow.budget.pass_rates import posterior_mean
from winnow.records import BoolArray, FloatArray, IntArray, PromptStats


def uniform(stats: PromptStats, budget: int) -> IntArray:
    """The same number for every prompt; a remainder goes to the first ones."""
    return divide_evenly(len(stats.ids), budget)


@ranged
def gvm(
    stats: PromptStats,
    budget: int,
    *,
    alpha: NotNegative = 1e-3,
    beta: Finite = 2.0,
    minimum: Natural = 0,
    maximum: Natural = 0,
    exploration: Natural = 0,
    filter_threshold: ZeroToOne = 1.0,
    filter_insufficient: Finite = 0.0,
) -> IntArray:
    """Rollouts in proportion to G_i / sqrt(p_i + alpha p_i^(1 - beta)): the least variance of the gradient per rollout.

    GVM (Yao et al. 2025, arXiv 2505.02391), Proposition 1, with the filters and the rounding of the released code.
    `stats` are those of a probe. A prompt without a pass rate or gradient norm above 0 has no weight and gets
    `exploration` rollouts (ours, so that it is tried again). Every other prompt that gets any rollouts gets at least
    `minimum` and, if not 0, at most `maximum`. `filter_threshold` drops prompts with a higher pass rate,
    `filter_insufficient` those with fewer expected correct rollouts. If no prompt has a weight, the allocation is
    uniform.
    """
    budget = _usable(budget, len(stats.ids), minimum, maximum)
    weights = gvm_weights(stats.pass_rate, stats.gradient_norm, alpha=alpha, beta=beta)
    kept = _filtered(weights, stats.pass_rate, budget, filter_threshold, filter_insufficient)
    floor = _explored(kept, weights == 0, exploration, budget)
    return apportion(kept, budget, minimum=minimum, maximum=maximum, floor=floor)


@ranged
def gvm_online(
    stats: PromptStats,
    budget: int,
    *,
    alpha: NotNegative = 1e-3,
    beta: Finite = 2.0,
    minimum: Natural = 0,
    maximum: Natural = 0,
    exploration: Natural = 2,
    prior: Positive = 0.5,
) -> IntArray:
    """GVM's allocation without a probe: p_i and G_i come from earlier visits of the same prompts. Ours.

    The pass rate is the mean of a Beta(prior, prior) after the (decayed) visits. A prompt without visits gets the
    mean of the visited prompts' weights above 0, so a step of new prompts is uniform. A visited prompt that was never
    solved gets `exploration` rollouts. One that was solved when no norm was measured counts with the mean norm of the
    others. Bounds are those of `gvm`.
    """
    budget = _usable(budget, len(stats.ids), minimum, maximum)
    seen = stats.trials > 0
    rate = np.where(seen, posterior_mean(stats.correct, stats.trials, prior=prior), np.nan)
    norms = stats.gradient_norm
    if not np.all(np.isnan(norms)):
        norms = np.where(np.isnan(norms), np.nanmean(norms), norms)
    weights = gvm_weights(rate, norms, alpha=alpha, beta=beta)
    weights = np.where(seen & (stats.correct == 0), 0.0, weights)
    weights = np.where(seen, weights, weights[seen & (weights > 0)].mean() if np.any(weights[seen] > 0) else 1.0)
    floor = _explored(weights, seen & (weights == 0), exploration, budget)
    return apportion(weights, budget, minimum=minimum, maximum=maximum, floor=floor)


@ranged
def knapsack(
    stats: PromptStats, budget: int, *, minimum: AtLeastOne = 2, maximum: Natural = 0, prior: NotNegative = 0.5
) -> IntArray:
    """The most prompts of medium difficulty whose rollouts are neither all right nor all wrong.

    Knapsack RL (Li et al. 2025, arXiv 2509.25849) maximises the sum of (1 - p^n - (1-p)^n) p (1-p)^2, see
    `allocation.KNAPSACK`; the paper has 2 <= n <= 128. It was derived for 0/1 rewards and a group baseline on rollouts
    that include both kinds where both were sampled, as `all` and `max_variance` keep them. The pass rate p is the mean
    of a Beta(prior, prior) after the earlier visits: with `prior` = 0 it is the share of correct rollouts, as in the
    paper, and a prompt that was never solved gets `minimum` rollouts. A prompt without visits gets the mean count, as
    in the authors' code. Bounds are those of `gvm`, except that `minimum` is for every prompt while the budget lasts.
    """
    rates = posterior_mean(stats.correct, stats.trials, prior=prior)
    return _most_valuable(KNAPSACK, stats, rates, budget, minimum, maximum)


@ranged
def vip_rloo(
    stats: PromptStats, budget: int, *, minimum: AtLeastTwo = 2, maximum: Natural = 0, prior: NotNegative = 0.5
) -> IntArray:
    """The least variance of the gradient under the advantage `rloo`: the smallest sum of p (1 - p) / (n - 1).

    VIP (Nguyen et al. 2026, arXiv 2602.01601) without its Gaussian process, which predicts p from the prompts' text,
    and without the term for hard prompts in the authors' code; see `allocation.RLOO`. It was derived for 0/1 rewards,
    for a gradient that weighs each prompt equally, and for training on all rollouts. Options as for `knapsack`.
    """
    rates = posterior_mean(stats.correct, stats.trials, prior=prior)
    return _most_valuable(RLOO, stats, rates, budget, minimum, maximum)


@ranged
def vip_dr_grpo(
    stats: PromptStats, budget: int, *, minimum: AtLeastThree = 3, maximum: Natural = 0, prior: NotNegative = 0.5
) -> IntArray:
    """The least variance of the gradient under the advantage `dr_grpo`: the smallest sum of p (1 - p) (n - 1) / n^2.

    As `vip_rloo`, from the same source; see `allocation.DR_GRPO`. The sum is convex from n = 3 on, so `minimum` is 3
    or more.
    """
    rates = posterior_mean(stats.correct, stats.trials, prior=prior)
    return _most_valuable(DR_GRPO, stats, rates, budget, minimum, maximum)


@ranged
def cures(stats: PromptStats, budget: int, *, minimum: Natural = 0, maximum: Natural = 0) -> IntArray:
    """The least variance of the gradient of centred rewards: the smallest sum of G^2 p (1 - p) / n.

    CurES (Zeng et al. 2025, arXiv 2510.01037): counts in proportion to the standard deviation of (r - p) times the norm
    of a rollout's gradient; see `allocation.cures_variance`. A probe measures the norms of correct rollouts only, so G,
    their mean, counts for wrong ones too, and the norms of a prompt as equal. The paper has the norms of both. A prompt
    of pass rate 0 or 1 needs no rollout. Bounds are those of `gvm`, except that `minimum` is for every prompt while the
    budget lasts. CurES's choice of prompts is a sampler.
    """
    norms = stats.gradient_norm
    norms = np.ones_like(norms) if np.all(np.isnan(norms)) else np.nan_to_num(norms)
    rates = np.where(stats.trials > 0, stats.pass_rate, 0.0)  # prompts without trials get the mean count
    variance = cures_variance(rates, norms, norms)
    return _most_valuable(MEAN, stats, variance, budget, minimum, maximum)


def _most_valuable(
    value: PromptValue, stats: PromptStats, statistics: FloatArray, budget: int, minimum: int, maximum: int
) -> IntArray:
    """The best counts for the prompts with trials; any other prompt gets the mean count."""
    prompts = len(stats.ids)
    budget = _usable(budget, prompts, minimum, maximum)
    known = stats.trials > 0
    unknown = prompts - int(known.sum())
    if unknown == prompts:
        return divide_evenly(prompts, budget)
    # With a maximum, the known prompts may not be able to use the rest
    reserved = max(unknown * (budget // prompts), budget - maximum * (prompts - unknown) if maximum else 0)
    counts = np.zeros(prompts, dtype=np.int64)
    counts[known] = allocate_greedily(value, statistics[known], budget - reserved, minimum=minimum, maximum=maximum)
    if unknown:
        counts[~known] = divide_evenly(unknown, reserved)
    return counts


def _usable(budget: int, prompts: int, minimum: int, maximum: int) -> int:
    """The part of a budget that `prompts` prompts can use."""
    check_bounds(budget, minimum, maximum)
    return min(budget, maximum * prompts) if maximum else budget


def _filtered(
    weights: FloatArray, pass_rate: FloatArray, budget: int, filter_threshold: float, filter_insufficient: float
) -> FloatArray:
    """Weights, with 0 for prompts that are too easy, or whose share has too few expected correct rollouts."""
    kept = np.where(np.nan_to_num(pass_rate) > filter_threshold, 0.0, weights)
    if kept.sum() > 0:
        expected = np.nan_to_num(pass_rate) * kept / kept.sum() * budget
        kept = np.where(expected < filter_insufficient, 0.0, kept)
    return kept


def _explored(weights: FloatArray, unsolved: BoolArray, exploration: int, budget: int) -> IntArray:
    """[G] rollouts reserved for the `unsolved` prompts; none if no prompt has a weight.

    At most a uniform share of the budget, so never more than a maximum that has capped the budget.
    """
    if not np.any(weights > 0):
        return np.zeros(len(weights), dtype=np.int64)
    return np.where(unsolved, min(exploration, budget // len(weights)), 0).astype(np.int64)
