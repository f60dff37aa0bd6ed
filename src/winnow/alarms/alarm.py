"""The types of alarms: a rule's evidence, a kind of alarm, and an alarm that was raised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from winnow.alarms.past import Past
from winnow.config import AlarmsSection


@dataclass(frozen=True, slots=True)
class Evidence:
    """Why an alarm holds."""

    text: str  # the symptom with its numbers
    numbers: Mapping[str, float]  # the same numbers by name; a metric under its own name
    cause: str | None = None  # the cause that the numbers imply; None: the kind's text
    keys: tuple[str, ...] | None = None  # the keys for that cause; None: the kind's keys


Rule = Callable[[Past, AlarmsSection], Evidence | None]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of alarm: its symptom, its likely causes, and the keys of the configuration that change it."""

    name: str
    meaning: str  # the symptom
    cause: str  # likely causes, and the remedy
    keys: tuple[str, ...]
    limits: tuple[str, ...]  # the keys of [alarms] that its rule reads
    reads: tuple[str, ...]  # the metrics that its rule reads
    rule: Rule
    explains: tuple[str, ...] = ()  # alarms that are its consequences: none of them is raised while it holds


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm that was raised; `text` contains all of it in sentences."""

    step: int  # the first at which it held
    name: str
    text: str
    evidence: Mapping[str, float] = field(default_factory=dict)  # numbers by name; a metric under its own name
    keys: Mapping[str, Any] = field(default_factory=dict)  # to check, with present values; None: not known
    last: int = -1  # the last step at which it held; `step` while the run continues
