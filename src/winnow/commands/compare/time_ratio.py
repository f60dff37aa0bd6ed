"""The ratio of the times to the level, baseline over group, with an interval.

It is a ratio of geometric means, so its logarithm is a difference of mean log times. The 95% interval of that
difference is Student's t of the differences seed by seed if both groups have the same seeds, and Welch's otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from winnow.algos.intervals import Interval, of_seed_means, over_seeds
from winnow.commands.compare.seed_times import SeedTime
from winnow.records import FloatArray

ROUNDING = 1e-9  # of a ratio


@dataclass(frozen=True)
class TimeRatio:
    """A speed-up; above 1 the group is sooner. If a seed did not reach the level, it has only bounds."""

    baseline: float  # geometric mean of its times; NaN if a seed did not reach the level after its first evaluation
    group: float
    ratio: float  # NaN if either mean is
    low: float  # 95% interval; NaN without a ratio, and for fewer than two seeds on a side
    high: float
    paired: bool  # by seed
    at_least: float  # bound that longer runs of these seeds could not change; NaN where there is none
    at_most: float

    @property
    def has_interval(self) -> bool:
        return not math.isnan(self.low)

    @property
    def shows_difference(self) -> bool:
        """Whether the interval excludes 1."""
        return self.has_interval and not self.low - ROUNDING <= 1 <= self.high + ROUNDING


def time_ratio(baseline: Sequence[SeedTime], group: Sequence[SeedTime], axis: str) -> TimeRatio | None:
    """The ratio on one axis; None if a seed of either group lacks the axis, or has a time of 0 on it."""
    if any(axis not in seed.x for seed in (*baseline, *group)):
        return None
    one, two = (np.array([seed.x[axis] for seed in seeds]) for seeds in (baseline, group))
    if any(seed.reached and seed.x[axis] <= 0 for seed in (*baseline, *group)):
        return None
    paired = is_paired(baseline, group)
    if all(seed.reached for seed in (*baseline, *group)):
        low, high = np.exp(_interval(np.log(one), np.log(two), _order(baseline, group) if paired else None))
        ratio = _mean(one) / _mean(two)
        return TimeRatio(_mean(one), _mean(two), ratio, float(low), float(high), paired, ratio, ratio)
    at_least, at_most = _bounds(baseline, group, one, two)
    nan = math.nan
    first, second = (_mean(x) if all(s.reached for s in of) else nan for x, of in ((one, baseline), (two, group)))
    return TimeRatio(first, second, nan, nan, nan, paired, at_least, at_most)


def is_paired(baseline: Sequence[SeedTime], group: Sequence[SeedTime]) -> bool:
    """Whether the two groups have the same seeds."""
    one, two = ({seed.seed for seed in seeds} for seeds in (baseline, group))
    return one == two and None not in one


def _order(baseline: Sequence[SeedTime], group: Sequence[SeedTime]) -> list[int]:
    """The place in the group of each seed of the baseline."""
    places = {seed.seed: place for place, seed in enumerate(group)}
    return [places[seed.seed] for seed in baseline]


def _interval(baseline: FloatArray, group: FloatArray, order: Sequence[int] | None) -> Interval:
    return of_seed_means(baseline, group) if order is None else over_seeds(baseline - group[list(order)])


def _bounds(
    baseline: Sequence[SeedTime], group: Sequence[SeedTime], one: FloatArray, two: FloatArray
) -> tuple[float, float]:
    """(at least, at most). The time of a seed that never reached the level is longer than its training; the time of a
    seed that was above it at its first evaluation is shorter than until then.
    """
    if (one <= 0).any() or (two <= 0).any():
        return math.nan, math.nan
    longer = {"baseline": _any(baseline, "never"), "group": _any(group, "never")}
    shorter = {"baseline": _any(baseline, "at the first"), "group": _any(group, "at the first")}
    above = longer["baseline"] or shorter["group"]
    below = longer["group"] or shorter["baseline"]
    ratio = _mean(one) / _mean(two)
    return (math.nan if below else ratio), (math.nan if above else ratio)


def _any(seeds: Sequence[SeedTime], ending: str) -> bool:
    return any(seed.ending == ending for seed in seeds)


def _mean(times: FloatArray) -> float:
    """The geometric mean."""
    return float(np.exp(np.log(times).mean()))
