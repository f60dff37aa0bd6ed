"""How many rollouts each of G prompts gets: statistics [G] and a budget of rollouts -> [G] counts.

Counts are never negative, and their sum is the budget (or G times the maximum, where that is less). Every allocator of
this library does one of two things. `apportion` divides the budget in proportion to weights, as GVM does.
`allocate_greedily` maximises the sum of the prompts' values: the value of a prompt is a concave function of its count,
and of statistics such as its pass rate. The members of both are:

    method          statistics [G]   value of n rollouts                       derived for
    Knapsack RL     pass rate p      KNAPSACK   (1 - p^n - (1-p)^n) p (1-p)^2  GRPO on 0/1 rewards
    VIP             pass rate p      RLOO       -p (1-p) / (n - 1)             the advantage r - mean of the others
    VIP             pass rate p      DR_GRPO    -p (1-p) (n - 1) / n^2         the advantage r - mean
    GVM, CurES      variance s       MEAN       -s / n                         a mean of n independent terms
    ours            pass rate p      kept_variance(m), of the m rewards kept   r - mean after max_variance

For GVM s is `gvm_weights(...) ** 2`, for CurES `cures_variance(...)`. Counts in proportion to sqrt(s) maximise MEAN
among real numbers; `allocate_greedily` does so among integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from winnow.budget.arguments import (
    LARGEST,
    check_bounds,
    check_count,
    check_integers,
    check_number,
    check_numbers,
    check_shape,
)
from winnow.records import BoolArray, FloatArray, IntArray

_SAMPLE = 1024  # prompts
_NEAR = 16  # rollouts above twice the lowest count, at which a search begins
_NONE = 1e-150  # in place of 0 rollouts, so that the variance of no mean is finite and in proportion to that of a term
_MARGIN = 0.06  # of the gain that a sample suggests: three standard errors for uniform pass rates

Worth = Callable[[IntArray, FloatArray], FloatArray]  # (counts [K], statistics [K] or [K, ...]) -> [K]


@dataclass(frozen=True)
class PromptValue:
    """The value of n rollouts of a prompt, for n = `least`, `least` + 1, ... From there on it must be concave: each
    further rollout adds at most as much as the one before it. Raises ValueError for a negative `least`, and for a range
    that is none.
    """

    total: Worth  # the value of n rollouts
    least: int = 0
    gain: Worth | None = None  # total(n + 1) - total(n), computed without cancellation; None: by this subtraction
    within: tuple[float, float] | None = None  # the range of its statistics [G]; None: not checked, and [G, ...]

    def __post_init__(self) -> None:
        check_count("least", self.least)
        if self.within is not None and not self.within[0] <= self.within[1]:
            raise ValueError(f"within = {self.within} must be a range")

    def added(self, n: IntArray, statistics: FloatArray) -> FloatArray:
        """[K] the value that rollout n + 1 adds. Raises ValueError if it is not a number."""
        if self.gain is None:
            gains = np.asarray(self.total(n + 1, statistics) - self.total(n, statistics), dtype=np.float64)
        else:
            gains = np.asarray(self.gain(n, statistics), dtype=np.float64)
        if np.isnan(gains).any():
            raise ValueError("the value of a prompt is not a number: give statistics without NaN")
        return gains


def _knapsack(n: IntArray, p: FloatArray) -> FloatArray:
    return np.asarray((1 - p**n - (1 - p) ** n) * p * (1 - p) ** 2, dtype=np.float64)


def _knapsack_gain(n: IntArray, p: FloatArray) -> FloatArray:
    return np.asarray((p**n * (1 - p) + (1 - p) ** n * p) * p * (1 - p) ** 2, dtype=np.float64)


KNAPSACK = PromptValue(total=_knapsack, gain=_knapsack_gain, least=1, within=(0.0, 1.0))
"""Statistics: pass rates p. The probability that n rollouts of a prompt are neither all right nor all wrong, times
p (1 - p)^2, an approximation of the gain in p by a gradient step.

Knapsack RL (Li, Chen, Yang, Ding, Sun, Zhang, Huang, Luo 2025, arXiv 2509.25849), checked against the authors' code
(liziniu/KnapsackRL, verl/trainer/ppo/exploration_utils.py). Their dynamic programme values a prompt that gets its
minimum alone at 0 instead of at its value, so it gives too many prompts a third rollout; ours is exact. Their code also
gives the budget beyond an estimated need to prompts of pass rate 0; ours has no such rule.
"""

RLOO = PromptValue(
    total=lambda n, p: np.asarray(-p * (1 - p) / (n - 1), dtype=np.float64),
    gain=lambda n, p: np.asarray(p * (1 - p) / (n * (n - 1.0)), dtype=np.float64),
    least=2,
    within=(0.0, 1.0),
)
"""Statistics: pass rates p. Minus the variance of a prompt's gradient under the advantage r - mean of the others, up to
a factor: rollouts' gradients are taken as independent of their rewards and of one variance for all prompts.

VIP (Nguyen, Nguyen, Ma, Zhao, She, Nguyen 2026, arXiv 2602.01601). The variance was checked by enumeration, and against
the authors' code (HieuNT91/VIP, src/vip/allocation/bernoulli_allocation.py). That code adds 0.0007 n log p to what it
minimises (0.0004 n log p for DR_GRPO), which moves rollouts to hard prompts and is not in this value. It rounds the
counts of both forms by the value of DR_GRPO at n + 4; ours are exact for either. Its counts are from 4 to 32 by
default, where ours have the bounds of the call.
"""

DR_GRPO = PromptValue(
    total=lambda n, p: np.asarray(-p * (1 - p) * (n - 1) / n**2.0, dtype=np.float64),
    gain=lambda n, p: np.asarray(p * (1 - p) * (n * n - n - 1.0) / (n * (n + 1.0)) ** 2, dtype=np.float64),
    least=3,
    within=(0.0, 1.0),
)
"""As RLOO, under the advantage r - mean of all (VIP, the same source). It is concave only from n = 3 on: the second
rollout of a prompt adds variance, because a single rollout has an advantage of 0.
"""


def _mean_gain(n: IntArray, s: FloatArray) -> FloatArray:
    return np.asarray(s / np.maximum(n * (n + 1.0), _NONE), dtype=np.float64)


MEAN = PromptValue(
    total=lambda n, s: np.asarray(-s / np.maximum(n, _NONE), dtype=np.float64), gain=_mean_gain, within=(0.0, LARGEST)
)
"""Statistics: variances s. Minus the variance of a mean of n independent terms. A prompt of variance 0 needs no
rollout, any other at least one; where the budget has fewer, those of the largest variances get one each.
"""


def kept_variance(keep: int) -> PromptValue:
    """Statistics: pass rates p. The expected variance of the 0/1 rewards that `selection.max_variance` keeps of n, for
    n >= `keep`. Ours, for selection with PODS after the allocation.

    Take VIP's assumptions (see RLOO), and the advantage r - mean over the kept rollouts. Then the variance of a
    prompt's gradient is this number, up to a factor, and its mean is this number over p (1 - p), times the slope of p.
    If that slope is in proportion to p (1 - p), the number is also the squared ratio of signal to noise. So it is
    maximised, where VIP, whose estimator is unbiased, minimises the variance. Of c right and w wrong rollouts, the kept
    ones have the variance h(c) + h(w) - h(`keep`), where h(x) is that of x rewards of one kind and the rest of the
    other, at most half of `keep`. h is concave, and so is its mean over a binomial number. Raises ValueError for `keep`
    below 2.
    """
    check_count("keep", keep, least=2)  # of fewer rewards the variance is 0
    few = np.arange(keep // 2 + 1)
    heights = few * (keep - few) / keep**2

    def total(n: IntArray, p: FloatArray) -> FloatArray:
        missing = heights[-1] - heights[:-1]
        lost = sum(m * (_binomial(n, c, p) + _binomial(n, c, 1 - p)) for c, m in enumerate(missing))
        return np.asarray(heights[-1] - lost, dtype=np.float64)

    def gain(n: IntArray, p: FloatArray) -> FloatArray:
        steps = enumerate(np.diff(heights))
        return np.asarray(
            sum(step * (p * _binomial(n, c, p) + (1 - p) * _binomial(n, c, 1 - p)) for c, step in steps),
            dtype=np.float64,
        )

    return PromptValue(total=total, gain=gain, least=keep, within=(0.0, 1.0))


def _binomial(n: IntArray, c: int, p: FloatArray) -> FloatArray:
    """[K] the probability of `c` successes in n trials."""
    ways = np.ones(len(n), dtype=np.float64)
    for taken in range(c):
        ways *= (n - taken) / (taken + 1)
    return np.asarray(ways * p**c * (1 - p) ** (n - c), dtype=np.float64)


def allocate_greedily(
    value: PromptValue, statistics: FloatArray, budget: int, *, minimum: int, maximum: int = 0
) -> IntArray:
    """[G] counts, each `minimum` or more, whose sum is `budget` and whose summed value is the largest possible.

    Each rollout goes where it adds most. For concave values that is exact (Fox 1966, Operations Research 14, 210). All
    of the budget is spent, also where a rollout adds nothing. Of equal gains the prompt with fewer rollouts comes
    first, then the earlier one, so prompts of equal statistics get equal counts within one. No prompt gets more than
    `maximum` (0: no limit); the sum is G x `maximum` where that is less. A budget below G x `minimum` is divided
    evenly: no value is defined there.

    `statistics` [G] or [G, ...] are passed on to `value`, rows of some prompts at a time. Raises ValueError for a
    `minimum` below `value.least`, for a `maximum` below the minimum, for statistics outside `value.within`, and for
    values that are not numbers.

    >>> allocate_greedily(RLOO, np.array([0.5, 0.9, 1.0]), 12, minimum=2)
    array([6, 4, 2])
    """
    check_bounds(budget, minimum, maximum)
    if minimum < value.least:
        raise ValueError(f"minimum = {minimum} is below {value.least}, from which on this value is concave")
    prompts = len(np.atleast_1d(statistics))
    if value.within is not None:
        check_numbers("statistics", statistics, least=value.within[0], most=value.within[1])
    if budget <= minimum * prompts or not prompts:
        return divide_evenly(prompts, budget)
    top = min(maximum or budget, budget - minimum * (prompts - 1))
    low = np.full(prompts, minimum, dtype=np.int64)
    return _largest_gains(value, statistics, low, np.full_like(low, top), min(budget, top * prompts))


def _largest_gains(value: PromptValue, statistics: FloatArray, low: IntArray, high: IntArray, budget: int) -> IntArray:
    """[G] counts in [low, high] with the sum `budget`, that take the largest gains.

    A search for the smallest gain that is taken, where a heap would take `budget` steps. Each round tries a gain: those
    that reach it are all taken, or all others are not. After two guesses it is the median of the gains in the middle of
    the prompts' ranges.
    """
    guesses = _guesses(value, statistics, low, high, budget)
    low, high = low.copy(), high.copy()
    while (rest := budget - int(low.sum())) > 0:
        places = np.flatnonzero(low < high)
        rows, lowest, highest = statistics[places], low[places], high[places]
        if (tried := next(guesses, None)) is None:
            gains = value.added(_between(lowest, highest), rows)
            tried = float(np.partition(gains, len(gains) // 2)[len(gains) // 2])
        reached = _count(value, rows, lowest, highest, np.greater_equal, tried)
        if int((reached - lowest).sum()) <= rest:
            low[places] = reached
        elif np.any(reached < highest):
            high[places] = reached
        else:  # no gain is smaller: those that are larger are taken, and of the equal ones a part
            above = _count(value, rows, lowest, highest, np.greater, tried)
            if int((above - lowest).sum()) <= rest:
                low[places] = _level(above, highest, rest + int(lowest.sum()))
            else:
                high[places] = above
    return low


def _guesses(value: PromptValue, statistics: FloatArray, low: IntArray, high: IntArray, budget: int) -> Iterator[float]:
    """A little more and a little less than the smallest gain that is taken in a sample of many prompts."""
    if len(low) < 4 * _SAMPLE:
        return
    sample = np.arange(0, len(low), len(low) // _SAMPLE)
    rows, lowest = statistics[sample], low[sample]
    counts = _largest_gains(value, rows, lowest, high[sample], budget * len(sample) // len(low))
    taken = counts > lowest
    smallest = value.added(counts[taken] - 1, rows[taken]).min(initial=np.inf)
    yield float(smallest * (1 + _MARGIN))
    yield float(smallest * (1 - _MARGIN))


def _count(
    value: PromptValue, statistics: FloatArray, low: IntArray, high: IntArray, compare: np.ufunc, tried: float
) -> IntArray:
    """[K] the counts in [low, high] up to which the gains are above `tried`, or reach it, by bisection."""
    low, high = low.copy(), high.copy()
    while len(places := np.flatnonzero(low < high)):
        middle = _between(low[places], high[places])
        taken = compare(value.added(middle, statistics[places]), tried)
        low[places] = np.where(taken, middle + 1, low[places])
        high[places] = np.where(taken, high[places], middle)
    return low


def _between(low: IntArray, high: IntArray) -> IntArray:
    """[K] the middle of the range, or a smaller count where the range is wide: most counts are close to the lowest."""
    return np.asarray(np.minimum((low + high) // 2, 2 * low + _NEAR), dtype=np.int64)


def _level(low: IntArray, high: IntArray, total: int) -> IntArray:
    """[K] counts in [low, high] with the sum `total`, as level as these bounds allow; a remainder to the first ones."""
    below, above = int(low.min()), int(high.max())
    while below < above:  # the highest level that does not exceed the total
        level = (below + above + 1) // 2
        fits = int(np.clip(level, low, high).sum()) <= total
        below, above = (level, above) if fits else (below, level - 1)
    counts = np.asarray(np.clip(below, low, high), dtype=np.int64)
    counts[np.flatnonzero((counts == below) & (counts < high))[: total - int(counts.sum())]] += 1
    return counts


def divide_evenly(prompts: int, budget: int) -> IntArray:
    """[G] the same number for each of `prompts` prompts; a remainder goes to the first ones. Raises ValueError for a
    negative number, and for a budget without prompts.
    """
    check_count("budget", budget)
    check_count("prompts", prompts, least=1 if budget else 0)
    share, rest = divmod(budget, max(1, prompts))
    return np.full(prompts, share, dtype=np.int64) + (np.arange(prompts) < rest)


def cures_variance(pass_rate: FloatArray, right: FloatArray, wrong: FloatArray) -> FloatArray:
    """[G] the variance of (r - p) g: of a rollout's centred 0/1 reward times the norm of its gradient.

    CurES (Zeng et al. 2025, arXiv 2510.01037): p (1-p)^2 E[g^2 | right] + p^2 (1-p) E[g^2 | wrong] - p^2 (1-p)^2
    (E[g | right] - E[g | wrong])^2, checked by enumeration and against the authors' code (ZexuSun/CurES,
    epic/stage_0_init_difficulty_sample_size.py, which cites eq. 127 of the paper; we could not read that equation).
    `right` and `wrong` [G] are the mean norms; the norms of a kind count as equal. With norms of 1 it is p (1 - p).
    Where no rollout is of a kind, its norm may be NaN. Raises ValueError for a pass rate outside [0, 1], and for any
    other norm that is negative or not finite.
    """
    check_numbers("pass_rate", pass_rate, least=0.0, most=1.0)
    p, q = pass_rate, 1 - pass_rate
    right, wrong = _measured("right", right, p), _measured("wrong", wrong, q)
    variance = p * q**2 * right**2 + p**2 * q * wrong**2 - (p * q * (right - wrong)) ** 2
    return np.asarray(np.maximum(variance, 0.0), dtype=np.float64)


def _measured(name: str, numbers: FloatArray, share: FloatArray) -> FloatArray:
    """[G] the numbers of one kind of rollouts, 0 where its share is 0."""
    known = np.where(share > 0, check_shape(name, numbers, size=len(share)), 0.0)
    check_numbers(name, known, least=0.0)
    return known


def gvm_weights(pass_rate: FloatArray, gradient_norm: FloatArray, *, alpha: float, beta: float) -> FloatArray:
    """[G] w_i = G_i / sqrt(p_i + alpha p_i^(1 - beta)), 0 where p_i or G_i is 0 or unknown (arXiv 2505.02391, eq. 7).

    Where no gradient norm was measured (all NaN), each counts as 1. Raises ValueError for a pass rate outside [0, 1],
    for a norm or an alpha that is negative or infinite, and for a beta that is not finite.
    """
    check_numbers("pass_rate", pass_rate, least=0.0, most=1.0, unknown=True)
    check_numbers("gradient_norm", gradient_norm, least=0.0, size=len(pass_rate), unknown=True)
    check_number("alpha", alpha, least=0.0)
    check_number("beta", beta)
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
    priority: if it is otherwise impossible, one count stays below `minimum`. Raises ValueError for a `maximum` below
    the minimum, for floors that do not fit, and for a number that is negative or not finite.

    >>> apportion(np.array([1.0, 2.0, 5.0]), 16)
    array([ 2,  4, 10])
    """
    check_bounds(budget, minimum, maximum)
    check_numbers("weights", weights, least=0.0)
    if budget and not len(weights):
        raise ValueError(f"budget = {budget}, and no prompts")
    base = np.zeros(len(weights), dtype=np.int64) if floor is None else floor
    top = maximum or budget
    budget = min(budget, top * len(weights))
    _check_floor(base, len(weights), top, budget)
    rest = budget - int(base.sum())
    weights = _summable(weights) if np.any(weights > 0) else np.ones(len(weights))
    room = top - base
    active = _active(weights, rest, minimum, room)
    high = np.where(active, room, 0)
    low = _affordable(np.where(active, np.clip(minimum - base, 0, room), 0), weights, rest)
    return base + _round(_bounded_shares(weights, rest, low, high), rest, low, high, weights)


def _summable(weights: FloatArray) -> FloatArray:
    """Weights whose sum is finite: only their proportions matter. Others are not scaled, which would round them."""
    largest = float(weights.max())
    return weights / largest if largest > LARGEST / len(weights) else weights


def _affordable(low: IntArray, weights: FloatArray, budget: int) -> IntArray:
    """[G] `low`, lowered where the budget has less: the bounds of the heaviest prompts are kept."""
    if low.sum() <= budget:
        return low
    heaviest = np.argsort(-weights, kind="stable")
    lowered = low.copy()
    lowered[heaviest] = np.clip(budget - (np.cumsum(low[heaviest]) - low[heaviest]), 0, low[heaviest])
    return lowered


def _active(weights: FloatArray, budget: int, minimum: int, room: IntArray) -> BoolArray:
    """Which prompts may get a part of `budget`.

    They are the heaviest whose share rounds to 1 or more: at most as many as `minimum` allows, at least as many as have
    `room` [G] for the budget, and at least one. If `minimum` is 0, every other prompt with a weight is among them too.
    """
    heaviest = np.argsort(-weights, kind="stable")
    rounded = int(np.count_nonzero(np.rint(weights / weights.sum() * budget) >= 1))
    affordable = budget // minimum if minimum else len(weights)
    needed = 1 + int(np.searchsorted(np.cumsum(room[heaviest], dtype=np.float64), budget))
    active = np.zeros(len(weights), dtype=np.bool_)
    active[heaviest[: max(needed, min(rounded, affordable))]] = True
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
    smallest = max(float(positive[positive > 0].min()), 4.0 * budget / LARGEST * max(1.0, float(positive.max())))
    scale_low, scale_high = 0.0, 2.0 * budget / smallest
    while scale_low < (scale := (scale_low + scale_high) / 2) < scale_high:  # bisection: the sum grows with the scale
        over = np.clip(scale * positive, low, high).sum() > budget
        scale_low, scale_high = (scale_low, scale) if over else (scale, scale_high)
    return np.asarray(np.clip(scale_low * positive, low, high), dtype=np.float64)


def _round(shares: FloatArray, budget: int, low: IntArray, high: IntArray, weights: FloatArray) -> IntArray:
    """Round half to even, then add or subtract one by one at the largest residuals. Counts stay within [low, high]."""
    counts = np.rint(shares).astype(np.int64)
    while (missing := budget - int(counts.sum())) != 0:
        step = 1 if missing > 0 else -1
        room = (counts < high) if step > 0 else (counts > low)
        residual = np.where(room, step * (shares - counts), -np.inf)
        best = np.flatnonzero(residual >= residual.max() - 1e-9)
        counts[best[np.argmax(weights[best])]] += step
    return counts


def _check_floor(floor: IntArray, prompts: int, most: int, budget: int) -> None:
    check_integers("floor", floor, size=prompts)
    if np.any(floor > most) or floor.sum() > budget:
        raise ValueError(f"floor: {floor.tolist()[:20]} is above {most} each, or above {budget} together")
