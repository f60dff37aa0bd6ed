"""The words of alarms: a rule's evidence, a kind of alarm, and one that was raised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from winnow.alarms.past import Past
from winnow.config import AlarmsSection


@dataclass(frozen=True, slots=True)
class Evidence:
    """Why an alarm holds."""

    text: str  # what was found, in numbers
    numbers: Mapping[str, float]  # the same by name, those of a metric by its name
    cause: str | None = None  # what the numbers say of the cause; None: the kind's own text
    keys: tuple[str, ...] | None = None  # which keys then; None: the kind's own


Rule = Callable[[Past, AlarmsSection], Evidence | None]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of alarm: what it means, what is likely behind it, and which keys of the configuration change it."""

    name: str
    meaning: str  # the symptom
    cause: str  # likely causes, and what to do
    keys: tuple[str, ...]
    limits: tuple[str, ...]  # the keys of [alarms] that its rule reads
    reads: tuple[str, ...]  # the metrics that its rule reads
    rule: Rule
    explains: tuple[str, ...] = ()  # alarms that are its consequences: none of them begins while it holds


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm that was raised, for a person: `text` has all of it in sentences."""

    step: int  # the first at which it held
    name: str
    text: str
    evidence: Mapping[str, float] = field(default_factory=dict)  # in numbers, those of a metric by its name
    keys: Mapping[str, Any] = field(default_factory=dict)  # to look at, with present values; None: not known
    last: int = -1  # the last step at which it held; while a run goes on, `step`
