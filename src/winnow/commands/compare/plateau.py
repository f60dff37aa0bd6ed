"""The accuracy at which a baseline's training levels off, and the level to which all groups are timed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from winnow.commands.compare.curve import AXES, Curve
from winnow.records import FloatArray

SHARE = 0.95  # of the plateau: the level
LAST = 3  # the plateau is measured over the last 1 / LAST of the evaluations
MOST_GAIN = 0.01  # for a share; for other measures a fraction of the plateau


@dataclass(frozen=True)
class Plateau:
    """The plateau of a baseline over the last third of its evaluations."""

    value: float  # mean over seeds of a seed's mean there
    gain: float  # mean over seeds of the gain of a least-squares line there; NaN for a single evaluation
    bound: float  # one-sided 95% upper bound of `gain`, by Student's t; for one curve the gain itself
    share: bool  # whether values are between 0 and 1, so that a point is 0.01

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
        """Whether the runs do not show that the baseline has levelled off; longer runs may have a higher level."""
        return not self.bound <= self.most_gain


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
    return Plateau(value, gain, bound, share)


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
