"""What is measured, and what came of it: one point is a number of rollouts, sampled or trained in one way."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from winnow.config import Config
from winnow.errors import ConfigError
from winnow.records import Prompt

Way = Literal["sampling", "whole", "accumulated", "selected"]
Ending = Literal["measured", "out of memory", "out of time", "failed"]

WAYS: dict[Way, str] = {  # in the order in which the ways of one number are measured
    "sampling": "sampling",
    "whole": "update, no accumulation",
    "accumulated": "update, accumulation",
    "selected": "update, selection",
}
MOST = 2**20  # rollouts of a point


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call asks for. Of each point: a warm-up, then so many repetitions, of which the median counts."""

    rollouts: tuple[int, ...]  # sampled side by side
    kept: tuple[int, ...]  # in one update
    repeats: int
    seconds: float  # a point may take, once its model is loaded
    memory_limit: int | None = None  # bytes


@dataclass(frozen=True, slots=True)
class Point:
    """A number of rollouts that are sampled at once, or that an update is given. `selected` trains on those of them
    that the configuration's selectors keep, the other two on all.
    """

    way: Way
    rollouts: int


@dataclass(frozen=True, slots=True)
class Job:
    """A point with all that a process of its own needs to measure it."""

    point: Point
    config: Config
    base: Path
    prompts: tuple[Prompt, ...]
    repeats: int
    seconds: float
    memory_limit: int | None


@dataclass(frozen=True, slots=True)
class Work:
    """What one call of a point's work did."""

    tokens: int  # generated, or trained on
    trained: int = 0  # rollouts
    micro_batches: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """A point measured, or why it was not."""

    point: Point
    ending: Ending
    seconds: tuple[float, ...] = ()  # of each repetition
    work: Work | None = None  # of one repetition
    held: int | None = None  # bytes before a repetition: weights, optimizer; None where nobody counts
    peak: int | None = None  # bytes at most in a repetition, what was held included
    why: str = ""  # where it was not measured

    @property
    def median(self) -> float:
        """Seconds of the repetition in the middle."""
        return statistics.median(self.seconds)

    @property
    def per_token(self) -> float:
        """The median's seconds for each token of its work; NaN where it had none."""
        return self.median / self.work.tokens if self.work and self.work.tokens else float("nan")


def points(asked: Asked, *, selects: bool) -> Iterator[Point]:
    """Every point, the small ones first. Updates with accumulation are measured for the sampled numbers too, as whole
    steps are made of both; an update without accumulation grows with its rollouts and is measured where it is asked
    for alone. Where nothing is selected there is no third way.
    """
    yield from (Point("sampling", n) for n in sorted(asked.rollouts))
    for n in sorted({*asked.rollouts, *asked.kept}):
        if n in asked.kept:
            yield Point("whole", n)
        yield Point("accumulated", n)
        if selects:
            yield Point("selected", n)


def numbers(text: str, *, least: int, what: str) -> tuple[int, ...]:
    """Of "8,16 32" each once and ascending. Raises ConfigError for what is no number of rollouts."""
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


def divided(rollouts: int, *, per_prompt: int, prompts: int) -> list[int]:
    """How many rollouts each prompt gets: as few prompts as `per_prompt` allows, at most `prompts`, as even as can be.

    >>> divided(40, per_prompt=16, prompts=99)
    [14, 13, 13]
    """
    groups = min(-(-rollouts // per_prompt), prompts)
    return [rollouts // groups + (place < rollouts % groups) for place in range(groups)]
