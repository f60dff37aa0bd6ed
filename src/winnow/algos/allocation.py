"""How many rollouts each prompt gets: (statistics of G prompts, a budget of rollouts) -> [G] counts.

Counts are never negative, and their sum is the budget (or G times the maximum, where that is less).
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from winnow.errors import ConfigError
from winnow.records import BoolArray, FloatArray, IntArray, PromptStats
from winnow.registry import register

Natural = Annotated[int, Field(ge=0)]
Smoothing = Annotated[float, Field(ge=0.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


@register("allocator", source="none")
def uniform(stats: PromptStats, budget: int) -> IntArray:
    """The same number for every prompt; a remainder goes to the first ones."""
    prompts = len(stats.ids)
    share, rest = divmod(budget, prompts)
    return np.full(prompts, share, dtype=np.int64) + (np.arange(prompts) < rest)


@register("allocator", source="probe")
def gvm(
    stats: PromptStats,
    budget: int,
    *,
    alpha: Smoothing = 1e-3,
    beta: float = 2.0,
    minimum: Natural = 0,
    maximum: Natural = 0,
    exploration: Natural = 0,
    filter_threshold: Share = 1.0,
    filter_insufficient: float = 0.0,
) -> IntArray:
    """Rollouts in proportion to G_i / sqrt(p_i + alpha p_i^(1 - beta)): the least variance of the gradient per rollout.

    GVM (Yao et al. 2025, arXiv 2505.02391), Proposition 1, with the filters and the rounding of the released code.
    `stats` are those of a probe. A prompt without a pass rate or gradient norm above 0 has no weight and gets
    `exploration` rollouts (ours, so that it is tried again). Every other prompt that gets any rollouts gets at least
    `minimum` and, if not 0, at most `maximum`. `filter_threshold` drops prompts with a higher pass rate,
    `filter_insufficient` those with fewer expected correct rollouts. If no prompt has a weight, the allocation is
    uniform. Raises ConfigError when `minimum` is above `maximum`.
    """
    budget = _within(budget, len(stats.ids), minimum, maximum)
    weights = gvm_weights(stats.pass_rate, stats.gradient_norm, alpha=alpha, beta=beta)
    kept = _filtered(weights, stats.pass_rate, budget, filter_threshold, filter_insufficient)
    floor = _explored(kept, weights == 0, exploration, budget)
    return apportion(kept, budget, minimum=minimum, maximum=maximum, floor=floor)


@register("allocator", source="history")
def gvm_online(
    stats: PromptStats,
    budget: int,
    *,
    alpha: Smoothing = 1e-3,
    beta: float = 2.0,
    minimum: Natural = 0,
    maximum: Natural = 0,
    exploration: Natural = 2,
    prior: Annotated[float, Field(gt=0)] = 0.5,
) -> IntArray:
    """GVM's allocation without a probe: p_i and G_i come from earlier visits of the same prompts. Ours.

    The pass rate is the mean of a Beta(prior, prior) after the (decayed) visits. A prompt without visits gets the
    mean of the visited prompts' weights above 0, so a step of new prompts is uniform. A visited prompt that was never
    solved gets `exploration` rollouts. Bounds and their errors are those of `gvm`.
    """
    budget = _within(budget, len(stats.ids), minimum, maximum)
    seen = stats.trials > 0
    rate = np.where(seen, (stats.correct + prior) / (stats.trials + 2 * prior), np.nan)
    weights = gvm_weights(rate, stats.gradient_norm, alpha=alpha, beta=beta)
    weights = np.where(seen & (stats.correct == 0), 0.0, weights)
    weights = np.where(seen, weights, weights[seen & (weights > 0)].mean() if np.any(weights[seen] > 0) else 1.0)
    floor = _explored(weights, seen & (weights == 0), exploration, budget)
    return apportion(weights, budget, minimum=minimum, maximum=maximum, floor=floor)


def gvm_weights(pass_rate: FloatArray, gradient_norm: FloatArray, *, alpha: float, beta: float) -> FloatArray:
    """[G] w_i = G_i / sqrt(p_i + alpha p_i^(1 - beta)), 0 where p_i or G_i is 0 or unknown (arXiv 2505.02391, eq. 7).

    Where no gradient norm was measured (all NaN), each counts as 1.
    """
    norms = np.ones_like(gradient_norm) if np.all(np.isnan(gradient_norm)) else np.nan_to_num(gradient_norm)
    rates = np.nan_to_num(pass_rate)
    safe = np.where(rates > 0, rates, 1.0)
    return np.where(rates > 0, norms / np.sqrt(safe + alpha * safe ** (1.0 - beta)), 0.0)


def apportion(
    weights: FloatArray, budget: int, *, minimum: int = 0, maximum: int = 0, floor: IntArray | None = None
) -> IntArray:
    """[G] integers in proportion to `weights` whose sum is `budget`, or G x maximum if that is less.

    First each prompt gets its `floor`; floors are at most the maximum and total at most the budget. Of the rest,
    prompts whose share rounds to at least 1 get at least `minimum`, the heaviest first while the budget lasts. Shares
    are rounded half to even, and the difference is distributed one by one to the largest remainders. The sum has
    priority: if it is otherwise impossible, one count stays below `minimum`.
    """
    base = np.zeros(len(weights), dtype=np.int64) if floor is None else floor
    top = maximum or budget
    budget = min(budget, top * len(weights))
    rest = budget - int(base.sum())
    weights = weights if np.any(weights > 0) else np.ones(len(weights))
    active = _active(weights, rest, minimum, top)
    room = top - base
    high = np.where(active, room, 0)
    low = np.where(active, np.clip(minimum - base, 0, room), 0)
    return base + _round(_bounded_shares(weights, rest, low, high), rest, low, high, room, weights)


def _active(weights: FloatArray, budget: int, minimum: int, top: int) -> BoolArray:
    """Which prompts may get a part of `budget`.

    They are the heaviest whose share rounds to 1 or more: at most as many as `minimum` allows, at least as many as
    `top` requires, and at least one. If `minimum` is 0, every other prompt with a weight is among them too.
    """
    heaviest = np.argsort(-weights, kind="stable")
    rounded = int(np.count_nonzero(np.rint(weights / weights.sum() * budget) >= 1))
    affordable = budget // minimum if minimum else len(weights)
    count = max(1, min(rounded, affordable), -(-budget // top) if top else 1)
    active = np.zeros(len(weights), dtype=np.bool_)
    active[heaviest[:count]] = True
    return active if minimum else active | (weights > 0)


def _bounded_shares(weights: FloatArray, budget: int, low: IntArray, high: IntArray) -> FloatArray:
    """Shares of `budget`: the multiple of `weights`, clipped to [low, high], whose sum is the budget, or as near to it
    as the bounds allow.
    """
    positive = np.where((weights > 0) & (high > 0), weights, 0.0)
    if budget <= 0 or not positive.any():
        return low.astype(np.float64)
    free = positive / positive.sum() * budget
    if np.all((free >= low) & (free <= high)):
        return np.asarray(free, dtype=np.float64)
    scale_low, scale_high = 0.0, 2.0 * budget / positive[positive > 0].min()
    for _ in range(100):  # bisection: the sum grows with the scale
        scale = (scale_low + scale_high) / 2
        over = np.clip(scale * positive, low, high).sum() > budget
        scale_low, scale_high = (scale_low, scale) if over else (scale, scale_high)
    return np.asarray(np.clip(scale_low * positive, low, high), dtype=np.float64)


def _round(
    shares: FloatArray, budget: int, low: IntArray, high: IntArray, limit: IntArray, weights: FloatArray
) -> IntArray:
    """Round half to even, then add or subtract one by one at the largest residuals.

    Counts stay within [low, high], or within [0, limit] where the sum is impossible otherwise.
    """
    counts = np.rint(shares).astype(np.int64)
    while (missing := budget - int(counts.sum())) != 0:
        step = 1 if missing > 0 else -1
        room = (counts < high) if step > 0 else (counts > low)
        if not room.any():
            room = (counts < limit) if step > 0 else (counts > 0)
        residual = np.where(room, step * (shares - counts), -np.inf)
        best = np.flatnonzero(residual >= residual.max() - 1e-9)
        counts[best[np.argmax(weights[best])]] += step
    return counts


def _within(budget: int, prompts: int, minimum: int, maximum: int) -> int:
    """The part of a budget that `prompts` prompts can use. Raises ConfigError for bounds that exclude each other."""
    if 0 < maximum < minimum:
        raise ConfigError(
            f"allocate: minimum = {minimum} is above maximum = {maximum}",
            remedy=f"raise maximum to at least {minimum}, or lower minimum to at most {maximum} (it is 2 unless set "
            f"where an advantage has a group baseline)",
            key="allocate.minimum",
            code="config.combination",
        )
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
