"""The events of a run, and the watch that a run calls with each of them.

Only the rank that writes calls its watch, in the training thread, which waits for it. The exception is
`RolloutsFinished`: another thread may call the watch with it, while the training thread waits for rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from winnow.records import Alarm, StepReport


@dataclass(frozen=True)
class Started:
    """A run is about to take its first step."""

    folder: Path
    first_step: int
    last_step: int  # exclusive
    devices: tuple[str, ...] = ()  # lines for a person: the work and the memory of each device
    max_hours: float = 0.0  # of training, after which the run ends before `last_step`; 0: no limit


@dataclass(frozen=True)
class PhaseBegan:
    """A phase of a run began, which ends the one before it.

    It is a phase of the step's clock (`seconds/{phase}` of `winnow list metrics`); "probe", "evaluate" or "checkpoint"
    between two steps; or "load" before the first step.
    """

    step: int
    phase: str


@dataclass(frozen=True)
class RolloutsFinished:
    """Progress of sampling, about once a second. All ranks are counted as if each were as far as the writer."""

    step: int
    finished: int
    asked: int


@dataclass(frozen=True)
class Evaluated:
    """The weights before `step` were evaluated."""

    step: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class Notice:
    """A text for the user."""

    text: str


@dataclass(frozen=True)
class AlarmRaised:
    """An alarm began to hold at the step that was just reported."""

    alarm: Alarm


@dataclass(frozen=True)
class Ended:
    """The run ended without an error."""

    steps: int  # done
    model: Path | None  # the newest checkpoint; None where no step was done
    interrupted: bool  # a signal ended the run early


Event = Started | PhaseBegan | RolloutsFinished | StepReport | AlarmRaised | Evaluated | Notice | Ended
Watch = Callable[[Event], None]


def call_each(watches: Sequence[Watch]) -> Watch:
    """A watch that calls each of `watches` in order."""

    def each(event: Event) -> None:
        for watch in watches:
            watch(event)

    return each


def without_repeats(watch: Watch) -> Watch:
    """`watch`, but without a notice whose text it has had before.

    Otherwise there would be a notice at every save about the same file that cannot be removed.
    """
    passed: set[str] = set()

    def pass_on(event: Event) -> None:
        if not isinstance(event, Notice) or event.text not in passed:
            watch(event)
        if isinstance(event, Notice):
            passed.add(event.text)

    return pass_on


def ignore_event(event: Event) -> None:
    """A watch that ignores every event, for ranks that do not write."""
