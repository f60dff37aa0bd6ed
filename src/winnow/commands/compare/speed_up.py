"""The speed-up of PODS (Xu et al. 2025, arXiv 2504.13818): how many times sooner a group reaches the baseline's best.

The threshold is 0.99 of the maximum of the baseline's mean curve. A mean curve reaches it at its first point with
x > 0 at or above it, without interpolation between points (mean_curve.py defines the points). The speed-up is the
baseline's x over the other's. A curve that stays below has no such x: "never reached" is a result, not a missing value.
This speed-up has no interval. The comparison's main measure is in time_ratio.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from winnow.commands.compare.curve import Curve
from winnow.commands.compare.mean_curve import OnSharedX, on_shared_x
from winnow.commands.compare.seed_times import ROUNDING

SHARE = 0.99  # of the baseline's maximum, in the paper


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
    level = SHARE * float(one.y.mean(axis=0).max())
    return SpeedUp(level, _first(one, level), _first(two, level), float(two.x[-1]))


def _first(curves: OnSharedX, level: float) -> float | None:
    reached = np.flatnonzero((curves.x > 0) & (curves.y.mean(axis=0) >= level - ROUNDING))
    return float(curves.x[reached[0]]) if len(reached) else None
