"""Results from the measured points: where sampling saturates, which updates fit, and the seconds of a whole step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from winnow.commands.profile.points import PointResult, Way

GAIN = 0.10  # a doubling of the rollouts that lowers the seconds per token by a smaller share is no gain


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds of a step that samples `rollouts`; None if a part of it was not measured."""

    rollouts: int
    trained_on_all: float | None  # sampling, and an update on all rollouts with accumulation
    trained_on_selected: float | None  # sampling, and an update on the selected rollouts


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """The memory bound of a kind of update: the most rollouts that fit, and the fewest that do not."""

    fits: int | None
    ends: int | None  # None: all requested numbers fit


def points_of(results: Sequence[PointResult], way: Way) -> list[PointResult]:
    """The points of one way, in ascending order."""
    return sorted((one for one in results if one.point.way == way), key=lambda one: one.point.rollouts)


def measured(results: Sequence[PointResult], way: Way) -> dict[int, PointResult]:
    """rollouts -> measured point of one way, in ascending order."""
    return {one.point.rollouts: one for one in points_of(results, way) if one.ending == "measured"}


def saturation(results: Sequence[PointResult]) -> int | None:
    """The smallest number of rollouts beyond which every doubling lowers the seconds per token by less than GAIN.

    None if the largest measured doubling still lowers them by more. For numbers whose ratio is not 2, the change is
    converted to that of a doubling: the ratio of the seconds to the power of 1 / log2(ratio of the rollouts).
    """
    per_token = [(n, one.per_token) for n, one in measured(results, "sampling").items()]
    saturated = None
    for (fewer, before), (more, after) in reversed(list(itertools.pairwise(per_token))):
        per_doubling = (after / before) ** (1 / math.log2(more / fewer))
        if per_doubling <= 1 - GAIN:
            break
        saturated = fewer
    return saturated


def speed_up(results: Sequence[PointResult]) -> tuple[int, int, float] | None:
    """(fewest rollouts, most rollouts, ratio of their seconds per token); None for fewer than two points."""
    per_token = {n: one.per_token for n, one in measured(results, "sampling").items()}
    if len(per_token) < 2:
        return None
    few, many = min(per_token), max(per_token)
    return few, many, per_token[few] / per_token[many]


def memory_bound(results: Sequence[PointResult], way: Way) -> MemoryBound:
    """Where one way runs out of memory."""
    ends = next((one.point.rollouts for one in points_of(results, way) if one.ending == "out of memory"), None)
    fitting = [n for n in measured(results, way) if ends is None or n < ends]
    return MemoryBound(fits=max(fitting, default=None), ends=ends)


def steps(results: Sequence[PointResult]) -> list[Step]:
    """A whole step for each sampled number: the sum of sampling and update, which are measured separately."""
    sampled = measured(results, "sampling")
    every, selected = (measured(results, way) for way in ("accumulated", "selected"))

    def total(n: int, update: dict[int, PointResult]) -> float | None:
        return sampled[n].median + update[n].median if n in sampled and n in update else None

    numbers = [one.point.rollouts for one in points_of(results, "sampling")]
    return [Step(n, total(n, every), total(n, selected)) for n in numbers]
