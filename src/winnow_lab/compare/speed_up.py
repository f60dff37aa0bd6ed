"""The times to a level of accuracy: of one seed, their ratio to the baseline's, and the speed-up as PODS defines it.

**Of a seed.** Each evaluation is averaged with its neighbours: three values, two at either end. The seed reaches the
level at the first crossing of the running maximum of these means, interpolated linearly between two evaluations.
docs/statistics.md has the simulations for these choices. The level is a share of the plateau, the accuracy at which
the baseline's training levels off.

**The ratio**, baseline over group, is of geometric means, so its logarithm is a difference of mean log times. The 95%
interval of that difference is Student's t of the differences seed by seed if both groups have the same seeds, and
Welch's otherwise.

**The speed-up of PODS** (Xu et al. 2025, arXiv 2504.13818) is how many times sooner a group reaches the baseline's
best. The threshold is 0.99 of the maximum of the baseline's mean curve. A mean curve reaches it at its first point
with x > 0 at or above it, without interpolation between points (curve.py defines the points). The speed-up is the
baseline's x over the other's. A curve that stays below has no such x: "never reached" is a result, not a missing
value. This speed-up has no interval. The comparison's main measure is the ratio.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy.special import stdtrit

from winnow.algos.intervals import of_seed_means, over_seeds
from winnow.records import FloatArray
from winnow_lab.compare.curve import AXES, Curve, OnSharedX, on_shared_x

Ending = Literal["reached", "never", "at the first"]
ROUNDING = 1e-9  # of a mean: sums of the same accuracies in another order count as equal
SHARE = 0.95  # of the plateau: the level
LAST = 3  # the plateau is measured over the last 1 / LAST of the evaluations
MOST_GAIN = 0.01  # for a share; for other measures a fraction of the plateau
MOST_FALL = 0.05  # likewise
PODS_SHARE = 0.99  # of the baseline's maximum, in the paper


@dataclass(frozen=True)
class SeedTime:
    """The time at which one seed reaches the level, or the reason why there is none."""

    seed: str | None
    ending: Ending  # "at the first": the mean of its first two evaluations is already above the level
    evaluations: float  # number of evaluations after the first until then, with a fraction; NaN unless reached
    at_last: bool  # no later evaluation confirms the crossing
    x: Mapping[str, float]  # axis -> time; for "never" the last evaluation, for "at the first" the first one above it
    beyond: Mapping[str, float] = field(default_factory=dict)  # of "never" and `at_last`: what longer runs keep below

    @property
    def reached(self) -> bool:
        return self.ending == "reached"


def seed_time(curve: Curve, measure: str, level: float) -> SeedTime:
    """The time of a curve that has the measure at one evaluation at least; evaluations without it are skipped."""
    measured = np.isfinite(curve.y[measure])
    x = {axis: of[measured] for axis, of in curve.x.items()}
    values = curve.y[measure][measured]
    y = smoothed(values)
    above = np.flatnonzero(y >= level - ROUNDING)
    # A further evaluation would enter the last mean, and no earlier one
    kept = {axis: float(of[max(0, len(of) - 2)]) for axis, of in x.items()}
    if not len(above) or above[0] == 0:
        # The first mean contains the second evaluation: the level may lie between the two
        place, ending = (int(values[0] < level - ROUNDING), "at the first") if len(above) else (-1, "never")
        at = {axis: float(of[place]) for axis, of in x.items()}
        return SeedTime(curve.seed, ending, math.nan, False, at, {} if len(above) else kept)  # type: ignore[arg-type]
    after = int(above[0])
    before = float(y[:after].max())  # the running maximum
    part = min(1.0, (level - before) / (float(y[after]) - before))
    at = {axis: float(v[after - 1] + part * (v[after] - v[after - 1])) for axis, v in x.items()}
    at_last = after == len(y) - 1
    return SeedTime(curve.seed, "reached", after - 1 + part, at_last, at, kept if at_last else {})


def smoothed(y: FloatArray) -> FloatArray:
    """[P] the mean of each number and its existing neighbours."""
    around = np.ones(3)
    if len(y) < 3:
        return np.full(len(y), y.mean())
    return np.convolve(y, around, "same") / np.convolve(np.ones(len(y)), around, "same")


@dataclass(frozen=True)
class Plateau:
    """The plateau of a baseline over the last third of its evaluations."""

    value: float  # mean over seeds of a seed's mean there
    gain: float  # mean over seeds of the gain of a least-squares line there; NaN for a single evaluation
    bound: float  # one-sided 95% upper bound of `gain`, by Student's t; for one curve the gain itself
    share: bool  # whether values are between 0 and 1, so that a point is 0.01
    fall: float  # mean over seeds of the largest fall of the smoothed curve below its own running maximum

    @property
    def level(self) -> float | None:
        """The level to which every seed of every group is timed; None without a plateau above 0."""
        return SHARE * self.value if self.value > 0 else None

    @property
    def most_gain(self) -> float:
        """The largest bound of a baseline that has levelled off."""
        return MOST_GAIN if self.share else MOST_GAIN * abs(self.value)

    @property
    def still_rising(self) -> bool:
        """Whether the runs do not show that the baseline has levelled off; longer runs may have a higher level. A curve
        whose line falls by more than a plateau may gain does not rise.
        """
        return not (self.bound <= self.most_gain or self.gain < -self.most_gain)

    @property
    def unstable(self) -> bool:
        """Whether the baseline falls too far below its own maximum for its plateau to be a level."""
        return self.fall > (MOST_FALL if self.share else MOST_FALL * abs(self.value))


def plateau_of(curves: Sequence[Curve], measure: str, *, share: bool = True) -> Plateau:
    """The plateau of the baseline's curves, each of which has the measure at one evaluation at least.

    The last third of P evaluations are the last P / 3, rounded up, and at least two.
    """
    ends = [_end(curve, measure) for curve in curves]
    value = float(np.mean([y.mean() for _, y in ends]))
    gains = np.array([_gain(x, y) for x, y in ends])
    gain, seeds = float(gains.mean()), len(gains)
    error = float(gains.std(ddof=1)) / math.sqrt(seeds) if seeds > 1 else 0.0
    bound = gain + float(stdtrit(seeds - 1, 0.95)) * error if seeds > 1 else gain
    return Plateau(value, gain, bound, share, mean_fall([c.y[measure][np.isfinite(c.y[measure])] for c in curves]))


def mean_fall(seeds: Sequence[FloatArray]) -> float:
    """The mean over [P] measured values of each seed of the largest fall of the smoothed curve below its running
    maximum.
    """
    means = [smoothed(y) for y in seeds]
    return float(np.mean([(np.maximum.accumulate(y) - y).max() for y in means]))


def is_share(curves: Sequence[Curve], measure: str) -> bool:
    """Whether all values are between 0 and 1, so that a point is 0.01."""
    return all(bool(np.nanmin(c.y[measure]) >= 0 and np.nanmax(c.y[measure]) <= 1) for c in curves if measure in c.y)


def _end(curve: Curve, measure: str) -> tuple[FloatArray, FloatArray]:
    """(x, y) of the last third of the evaluations, over steps where they are known."""
    y, axis = curve.y[measure], next(axis for axis in ("steps", *AXES) if axis in curve.x)
    measured = np.flatnonzero(np.isfinite(y))
    last = measured[-max(2, math.ceil(len(measured) / LAST)) :]
    return curve.x[axis][last], y[last]


def _gain(x: FloatArray, y: FloatArray) -> float:
    """The gain of a least-squares line from the first to the last x."""
    away = x - x.mean()
    square = float(away @ away)
    return float(away @ y) / square * float(x[-1] - x[0]) if square else math.nan


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
    if any(seed.reached and seed.x[axis] <= 0 for seed in (*baseline, *group)):
        return None
    mine, theirs = ({seed.seed for seed in seeds} for seeds in (baseline, group))
    paired = mine == theirs and None not in mine
    if paired:
        by_seed = {seed.seed: seed for seed in group}
        group = [by_seed[seed.seed] for seed in baseline]
    one, two = (np.array([seed.x[axis] for seed in seeds]) for seeds in (baseline, group))
    if all(seed.reached for seed in (*baseline, *group)):
        logs = np.log(one), np.log(two)
        low, high = np.exp(over_seeds(logs[0] - logs[1]) if paired else of_seed_means(*logs))
        ratio = _mean(one) / _mean(two)
        return TimeRatio(_mean(one), _mean(two), ratio, float(low), float(high), paired, ratio, ratio)
    ends = (np.array([seed.beyond.get(axis, seed.x[axis]) for seed in seeds]) for seeds in (baseline, group))
    at_least, at_most = _bounds(baseline, group, *ends)
    nan = math.nan
    first, second = (_mean(x) if all(s.reached for s in of) else nan for x, of in ((one, baseline), (two, group)))
    return TimeRatio(first, second, nan, nan, nan, paired, at_least, at_most)


def _bounds(
    baseline: Sequence[SeedTime], group: Sequence[SeedTime], one: FloatArray, two: FloatArray
) -> tuple[float, float]:
    """(at least, at most). The time of a seed that never reached the level is longer than its training; the time of a
    seed that was above it at its first evaluation is shorter than until then. A longer run could undo a crossing at the
    last evaluation, which counts as never.
    """
    if (one <= 0).any() or (two <= 0).any():
        return math.nan, math.nan
    of_baseline, of_group = ({"never" if s.at_last else s.ending for s in seeds} for seeds in (baseline, group))
    above = "never" in of_baseline or "at the first" in of_group
    below = "never" in of_group or "at the first" in of_baseline
    ratio = _mean(one) / _mean(two)
    return (math.nan if below else ratio), (math.nan if above else ratio)


def _mean(times: FloatArray) -> float:
    """The geometric mean."""
    return float(np.exp(np.log(times).mean()))


@dataclass(frozen=True)
class SpeedUp:
    """The times at which a group and the baseline reach a share of the baseline's best mean, over one axis."""

    level: float
    baseline: float | None  # the x at which the baseline reaches it; None: never
    other: float | None  # the x at which the group does; None: never
    ends: float  # the last x of the group

    @property
    def ratio(self) -> float | None:
        """The speed-up; above 1 the group was sooner. None if one of them never reached the level."""
        return self.baseline / self.other if self.baseline and self.other else None

    @property
    def ended_before(self) -> bool:
        """Whether the group did not reach the level, and ended before the time at which the baseline reached it."""
        return self.other is None and self.baseline is not None and self.ends < self.baseline


def speed_up(baseline: Sequence[Curve], other: Sequence[Curve], axis: str, measure: str) -> SpeedUp | None:
    """The speed-up in the mean of a measure over an axis.

    None if a curve of one of the two lacks the axis or the measure, or if its curves share no range of the axis.
    """
    one, two = (on_shared_x(curves, axis, measure) for curves in (baseline, other))
    if one is None or two is None:
        return None
    level = PODS_SHARE * float(one.y.mean(axis=0).max())
    return SpeedUp(level, _first(one, level), _first(two, level), float(two.x[-1]))


def _first(curves: OnSharedX, level: float) -> float | None:
    reached = np.flatnonzero((curves.x > 0) & (curves.y.mean(axis=0) >= level - ROUNDING))
    return float(curves.x[reached[0]]) if len(reached) else None
