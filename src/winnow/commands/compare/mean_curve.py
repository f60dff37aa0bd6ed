"""The mean of a group's seeds over an axis, with its standard error and interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from winnow.algos.intervals import over_seeds
from winnow.commands.compare.curve import Curve
from winnow.records import FloatArray

NORMAL = 1.96  # standard errors to either side: the band that papers draw


class Estimate(NamedTuple):
    """A mean over seeds. For a single curve, all numbers but the mean are NaN."""

    mean: float
    standard_error: float  # ddof 1
    low: float  # the 95% interval of Student's t, which keeps its coverage with few seeds
    high: float


class OnSharedX(NamedTuple):
    """The curves of a group at the same places."""

    x: FloatArray  # [X], rising
    y: FloatArray  # [S, X]


@dataclass(frozen=True, eq=False)
class MeanCurve:
    """The mean curve of a group over one axis, [X] each."""

    x: FloatArray
    mean: FloatArray
    standard_error: FloatArray
    low: FloatArray
    high: FloatArray

    def at(self, place: int) -> Estimate:
        """The estimate at one point."""
        return Estimate(*(float(values[place]) for values in (self.mean, self.standard_error, self.low, self.high)))


def estimate(values: FloatArray) -> Estimate:
    """The mean of [S] numbers, one per seed."""
    error = float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else np.nan
    return Estimate(float(values.mean()), error, *over_seeds(values))


def on_shared_x(curves: Sequence[Curve], axis: str, measure: str) -> OnSharedX | None:
    """The values of all curves at every x at which any of them was measured, in the range that all of them cover.

    Values between two points of a curve are interpolated linearly, and nothing is extrapolated. Curves with the same x
    keep their points. None if a curve lacks the axis or the measure, or if no x is in the range of all.
    """
    if not curves or any(axis not in curve.x or measure not in curve.y for curve in curves):
        return None
    points = [_distinct(curve.x[axis], curve.y[measure]) for curve in curves]
    first, last = max(x[0] for x, _ in points), min(x[-1] for x, _ in points)
    pooled = np.unique(np.concatenate([x for x, _ in points]))
    shared = pooled[(pooled >= first) & (pooled <= last)]
    if not len(shared):
        return None
    return OnSharedX(shared, np.stack([np.interp(shared, x, y) for x, y in points]))


def mean_curve(curves: Sequence[Curve], axis: str, measure: str) -> MeanCurve | None:
    """The mean of `on_shared_x` with its errors; None if that is None."""
    shared = on_shared_x(curves, axis, measure)
    if shared is None:
        return None
    columns = np.array([estimate(values) for values in shared.y.T])
    return MeanCurve(shared.x, *columns.T)


def _distinct(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The measured points of one curve; of several at the same x, the last."""
    measured = np.isfinite(y)
    x, y = x[measured], y[measured]
    last = np.append(np.diff(x) > 0, True)
    return x[last], y[last]
