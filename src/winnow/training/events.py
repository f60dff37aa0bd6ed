"""What a run tells those who watch it, as it happens: the events of `fit`, and how several watch one run.

A watch is called on the rank that writes alone: in the thread that trains, while nothing else of the run goes on. For
`RolloutsFinished` alone it may be another thread, while that one waits for rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from winnow.alarms import Alarm
from winnow.records import StepReport


@dataclass(frozen=True)
class Started:
    """A run is about to take its first step."""

    folder: Path
    first_step: int
    last_step: int  # exclusive
    devices: tuple[str, ...] = ()  # in lines: who computes where, and what memory it will take
    max_hours: float = 0.0  # of training, where it ends before `last_step`; 0: it does not


@dataclass(frozen=True)
class PhaseBegan:
    """A run does something else from now on: a phase of the step's clock (`seconds/{phase}` of `winnow list metrics`);
    or "probe", "evaluate" or "checkpoint" between two steps, or "load" before the first.
    """

    step: int
    phase: str


@dataclass(frozen=True)
class RolloutsFinished:
    """How far sampling is, about once a second while it lasts. Of all ranks, as if each were as far as the writer."""

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
    """Something a person should read."""

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
    interrupted: bool  # a signal ended it early


Event = Started | PhaseBegan | RolloutsFinished | StepReport | AlarmRaised | Evaluated | Notice | Ended
Watch = Callable[[Event], None]


def several(watches: Sequence[Watch]) -> Watch:
    """One watch that calls each of these, in their order."""

    def each(event: Event) -> None:
        for watch in watches:
            watch(event)

    return each


def without_repeats(watch: Watch) -> Watch:
    """`watch`, without a notice that it has had before, word by word: what no save can remove is said once."""
    said: set[str] = set()

    def pass_on(event: Event) -> None:
        if not isinstance(event, Notice) or event.text not in said:
            watch(event)
        if isinstance(event, Notice):
            said.add(event.text)

    return pass_on


def nobody(event: Event) -> None:
    """What watches a run on a rank that is not the writer."""
