"""What an alarm is: its symptom, its likely causes, the keys to change, its rule, and the evidence of one alarm.

docs/reference.md and the texts of alarms come from the declarations beside the rules. Where the numbers alone do
not identify the cause, the likely causes are the field's experience with policy-gradient methods on language models:
entropy collapse (Cui et al. 2025, arXiv 2505.22617), prompts that are always or never solved and truncation (Yu et al.
2025, DAPO, arXiv 2503.14476), length without gain (Liu et al. 2025, Dr. GRPO, arXiv 2503.20783), ratios and their clip
(Schulman et al. 2017, arXiv 1707.06347), an engine that differs from the policy (Yao et al. 2025).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from winnow.alarms.history import Past
from winnow.config import AlarmsSection

KINDS: list[Kind] = []  # in the order of docs/reference.md


@dataclass(frozen=True, slots=True)
class Evidence:
    """Why an alarm holds."""

    text: str  # the symptom with its numbers
    numbers: Mapping[str, float]  # the same numbers by name; a metric under its own name
    cause: str | None = None  # the cause that the numbers imply; None: the kind's text
    keys: tuple[str, ...] | None = None  # the keys for that cause; None: the kind's keys


Rule = Callable[[Past, AlarmsSection], Evidence | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of alarm: its symptom, its likely causes, and the keys of the configuration that change it."""

    name: str
    meaning: str  # the symptom
    cause: str  # likely causes, and the remedy
    keys: tuple[str, ...]
    reads: tuple[str, ...]  # the metrics that its rule reads
    limits: tuple[str, ...] = ()  # the keys of [alarms] that its rule reads
    rule: Rule
    explains: tuple[str, ...] = ()  # alarms that are its consequences: none of them is raised while it holds


def alarm(**declared: Any) -> Callable[[Rule], Rule]:
    """Declare a function as the rule of the alarm with its name. The keywords are the other fields of `Kind`."""

    def declare(rule: Rule) -> Rule:
        KINDS.append(Kind(name=rule.__name__, rule=rule, **declared))
        return rule

    return declare
