"""The time at which one seed reaches a level, on each axis.

Each evaluation is averaged with its neighbours: three values, two at either end. The seed reaches the level at the
first crossing of the running maximum of these means, interpolated linearly between two evaluations. docs/statistics.md
has the simulations for these choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from winnow.commands.compare.curve import Curve
from winnow.records import FloatArray

Ending = Literal["reached", "never", "at the first"]
ROUNDING = 1e-9  # of a mean: sums of the same accuracies in another order count as equal


@dataclass(frozen=True)
class SeedTime:
    """The time at which one seed reaches the level, or the reason why there is none."""

    seed: str | None
    ending: Ending  # "at the first": its first evaluation is already above the level
    evaluations: float  # number of evaluations after the first until then, with a fraction; NaN unless reached
    at_last: bool  # no later evaluation confirms the crossing
    x: Mapping[str, float]  # axis -> time; for "never" the last evaluation, for "at the first" the first

    @property
    def reached(self) -> bool:
        return self.ending == "reached"


def seed_time(curve: Curve, measure: str, level: float) -> SeedTime:
    """The time of a curve that has the measure at one evaluation at least; evaluations without it are skipped."""
    measured = np.isfinite(curve.y[measure])
    x = {axis: values[measured] for axis, values in curve.x.items()}
    y = smoothed(curve.y[measure][measured])
    above = np.flatnonzero(y >= level - ROUNDING)
    if not len(above) or above[0] == 0:
        place, ending = (0, "at the first") if len(above) else (-1, "never")
        at = {axis: float(values[place]) for axis, values in x.items()}
        return SeedTime(curve.seed, ending, float("nan"), False, at)  # type: ignore[arg-type]
    after = int(above[0])
    before = float(y[:after].max())  # the running maximum
    part = min(1.0, (level - before) / (float(y[after]) - before))
    at = {axis: float(v[after - 1] + part * (v[after] - v[after - 1])) for axis, v in x.items()}
    return SeedTime(curve.seed, "reached", after - 1 + part, after == len(y) - 1, at)


def smoothed(y: FloatArray) -> FloatArray:
    """[P] the mean of each number and its existing neighbours."""
    around = np.ones(3)
    if len(y) < 3:
        return np.full(len(y), y.mean())
    return np.convolve(y, around, "same") / np.convolve(np.ones(len(y)), around, "same")
