"""The points of a profile, their results, and what follows from the results.

A point is a number of rollouts, sampled or trained in one way.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from winnow.config import Config
from winnow.errors import ConfigError
from winnow.records import Prompt

Way = Literal["sampling", "whole", "accumulated", "selected"]
Ending = Literal["measured", "out of memory", "out of time", "failed"]

WAYS: dict[Way, str] = {  # in the order of measurement
    "sampling": "sampling",
    "whole": "update, no accumulation",
    "accumulated": "update, accumulation",
    "selected": "update, selection",
}
MOST = 2**20  # maximum number of rollouts of a point
GAIN = 0.10  # a doubling of the rollouts that lowers the seconds per token by a smaller share is no gain


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """The options of a profile. Each point has a warm-up, then `repeats` repetitions, whose median is the result."""

    rollouts: tuple[int, ...]  # numbers of rollouts that are sampled concurrently
    kept: tuple[int, ...]  # numbers of rollouts in one update
    repeats: int
    seconds: float  # time limit per point, excluding loading
    memory_limit: int | None = None  # bytes


@dataclass(frozen=True, slots=True)
class Point:
    """A number of rollouts that are sampled concurrently, or passed to an update.

    The way "selected" trains on those that the configuration's selectors keep, the other two updates on all.
    """

    way: Way
    rollouts: int


@dataclass(frozen=True, slots=True)
class Job:
    """A point with everything that its process needs to measure it."""

    point: Point
    config: Config
    base: Path
    prompts: tuple[Prompt, ...]
    request: ProfileRequest


@dataclass(frozen=True, slots=True)
class Work:
    """The amount of work of one repetition."""

    tokens: int  # generated, or trained on
    trained: int = 0  # rollouts trained on
    micro_batches: int = 0


@dataclass(frozen=True, slots=True)
class PointResult:
    """The result of a point: its measurements, or why there are none."""

    point: Point
    ending: Ending
    seconds: tuple[float, ...] = ()  # per repetition
    work: Work | None = None  # of one repetition
    held: int | None = None  # bytes before a repetition (weights, optimizer); None if memory is not counted
    peak: int | None = None  # most bytes during a repetition, including `held`
    why: str = ""  # the reason if it was not measured

    @property
    def median(self) -> float:
        """The median of the repetitions' seconds."""
        return statistics.median(self.seconds)

    @property
    def per_token(self) -> float:
        """Median seconds per token; NaN without tokens."""
        return self.median / self.work.tokens if self.work and self.work.tokens else float("nan")


def points(request: ProfileRequest, *, selects: bool) -> Iterator[Point]:
    """Every point: first those of sampling, then those of updates, each in ascending order.

    Updates with accumulation are measured for the sampled numbers too, because a whole step consists of both. An
    update without accumulation needs more memory with each rollout, and is measured only for the numbers `kept`.
    Updates with selection are omitted if the configuration selects nothing.
    """
    yield from (Point("sampling", n) for n in sorted(request.rollouts))
    for n in sorted({*request.rollouts, *request.kept}):
        if n in request.kept:
            yield Point("whole", n)
        yield Point("accumulated", n)
        if selects:
            yield Point("selected", n)


def parse_counts(text: str, *, least: int, what: str) -> tuple[int, ...]:
    """Parse "8,16 32" into ascending numbers without repetition. Raises ConfigError for invalid ones.

    `least` is the smallest valid number, and `what` names the option in the error.
    """
    words = text.replace(",", " ").split()
    wrong = [word for word in words if not (word.isascii() and word.isdigit() and least <= int(word[:9]) <= MOST)]
    if wrong or not words:
        given = f"{wrong[0]!r}" if wrong else "nothing"
        raise ConfigError(
            f"{what}: {given} is no number of rollouts",
            remedy=f"write numbers from {least} to {MOST:,} with commas between them, for example 8,16,32",
            code="config.value",
        )
    return tuple(sorted(set(map(int, words))))


def split_evenly(rollouts: int, *, per_prompt: int, prompts: int) -> list[int]:
    """The number of rollouts of each prompt: as few prompts as `per_prompt` allows, at most `prompts`.

    >>> split_evenly(40, per_prompt=16, prompts=99)
    [14, 13, 13]
    """
    groups = min(-(-rollouts // per_prompt), prompts)
    return [rollouts // groups + (place < rollouts % groups) for place in range(groups)]


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
