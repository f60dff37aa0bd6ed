"""When one seed reaches a level, on each axis.

The evaluations are smoothed by the mean of three neighbours, of two at either end. The seed reaches the level where the
running maximum of that first does, on a straight line between two evaluations. docs/statistics.md has the simulations
behind these choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from winnow.records import FloatArray
from winnow.report.comparison.curve import Curve

Ending = Literal["reached", "never", "at the first"]
ROUNDING = 1e-9  # of a mean: sums of the same accuracies in another order are equal


@dataclass(frozen=True)
class SeedTime:
    """When one seed reaches the level, or that it does not."""

    seed: str | None
    ending: Ending  # "at the first": its first evaluation is above the level already
    evaluations: float  # after its first; how many there were by then, a part of one included. NaN unless reached
    at_last: bool  # no later evaluation confirms the crossing
    x: Mapping[str, float]  # axis -> when; of "never" the last evaluation, of "at the first" the first

    @property
    def reached(self) -> bool:
        return self.ending == "reached"


def seed_time(curve: Curve, measure: str, level: float) -> SeedTime:
    """Of a curve that has the measure at one evaluation at least; where it was not measured the next one counts."""
    there = np.isfinite(curve.y[measure])
    x = {axis: values[there] for axis, values in curve.x.items()}
    y = smoothed(curve.y[measure][there])
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
    """[P] the mean of each number and its neighbours, as far as there are any."""
    around = np.ones(3)
    if len(y) < 3:
        return np.full(len(y), y.mean())
    return np.convolve(y, around, "same") / np.convolve(np.ones(len(y)), around, "same")
