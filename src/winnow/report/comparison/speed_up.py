"""How many times sooner a group reaches the baseline's best: the speed-up of PODS (Xu et al. 2025, arXiv 2504.13818).

The threshold is 0.99 of the maximum of the baseline's mean curve. Either mean curve reaches it at its first point with
x > 0 at or above it; nothing is interpolated between points of a mean curve (mean_curve.py says what those are). The
speed-up is the baseline's x over the other's. A curve that stays below has no such x: "never reached" is a result, not
a missing value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from winnow.report.comparison.curve import Curve
from winnow.report.comparison.mean_curve import MeanCurve, OnSharedX, on_shared_x

SHARE = 0.99  # of the baseline's maximum, in the paper
ROUNDING = 1e-9  # of a mean: sums of the same accuracies in another order are equal


@dataclass(frozen=True)
class SpeedUp:
    """When a group reaches a share of the baseline's best mean accuracy, over one axis."""

    level: float  # the accuracy to reach
    baseline: float | None  # the x at which the baseline reaches it; None: never
    other: float | None  # the x at which the group does; None: never
    ends: float  # the last x of the group
    baseline_ends: float  # the last x of the baseline

    @property
    def ratio(self) -> float | None:
        """Above 1: the group was sooner. None where one of them never reached it."""
        return self.baseline / self.other if self.baseline and self.other else None

    @property
    def ended_before(self) -> bool:
        """Whether the group has not reached the level and was not trained as far as the baseline was to reach it."""
        return self.other is None and self.baseline is not None and self.ends < self.baseline

    @property
    def baseline_at_its_end(self) -> bool:
        """Whether the baseline reaches the level at its last point only: training on could move the level."""
        return self.baseline == self.baseline_ends

    @property
    def other_at_its_end(self) -> bool:
        """The same of the group: it had no later point to confirm the crossing."""
        return self.other == self.ends


@dataclass(frozen=True)
class LeftOut:
    """The speed-up without any one seed of either group. This is a range of what was measured, and no interval."""

    lowest: float | None  # None where no variant had a ratio
    highest: float | None
    never: int  # variants in which one of the two never reached the level
    variants: int


def speed_up(baseline: Sequence[Curve], other: Sequence[Curve], axis: str, share: float = SHARE) -> SpeedUp | None:
    """Of the mean accuracy over an axis. None where the axis, or a common range, is missing in one of the two."""
    one, two = (on_shared_x(curves, axis, "accuracy") for curves in (baseline, other))
    return None if one is None or two is None else _compared(one, two, share)


def without_one_seed(
    baseline: Sequence[Curve], other: Sequence[Curve], axis: str, share: float = SHARE
) -> LeftOut | None:
    """How far the speed-up moves. None where neither group has a second seed."""
    found = [speed_up(one, two, axis, share) for one, two in _variants(baseline, other)]
    there = [variant for variant in found if variant is not None]
    if not there:
        return None
    ratios = [variant.ratio for variant in there if variant.ratio is not None]
    return LeftOut(min(ratios, default=None), max(ratios, default=None), len(there) - len(ratios), len(there))


def _variants(baseline: Sequence[Curve], other: Sequence[Curve]) -> Iterator[tuple[Sequence[Curve], Sequence[Curve]]]:
    if len(baseline) > 1:
        yield from (([*baseline[:i], *baseline[i + 1 :]], other) for i in range(len(baseline)))
    if len(other) > 1:
        yield from ((baseline, [*other[:i], *other[i + 1 :]]) for i in range(len(other)))


def _compared(baseline: OnSharedX, other: OnSharedX, share: float) -> SpeedUp:
    level = share * float(baseline.y.mean(axis=0).max())
    first = _first(baseline, level), _first(other, level)
    return SpeedUp(level, *first, float(other.x[-1]), float(baseline.x[-1]))


def gain_at_the_end(curve: MeanCurve) -> float:
    """What a mean curve gains over the last third of its points, at least two, by the slope of a least-squares line.

    In the unit of the curve. NaN for a curve of one point.
    """
    last = max(2, math.ceil(len(curve.x) / 3))
    x, y = curve.x[-last:], curve.mean[-last:]
    away = x - x.mean()
    return float((away @ y) / (away @ away) * (x[-1] - x[0])) if len(x) > 1 else math.nan


def is_rising(curve: MeanCurve) -> bool:
    """Whether a curve gains more over its last third than lies between the level and its best: 1% of the best.

    The level then depends on where training was ended.
    """
    return gain_at_the_end(curve) > (1 - SHARE) * float(curve.mean.max())


def _first(curves: OnSharedX, level: float) -> float | None:
    reached = np.flatnonzero((curves.x > 0) & (curves.y.mean(axis=0) >= level - ROUNDING))
    return float(curves.x[reached[0]]) if len(reached) else None
