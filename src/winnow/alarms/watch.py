"""Alarms during a run and of a finished run: the same rules over the same rows.

The rows alone decide, so a resume rebuilds the state of the alarms from the run's log.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from winnow.alarms.history import BLOCK, MEASURED, Past, Row
from winnow.alarms.kinds import Evidence, Kind
from winnow.alarms.rules import ALARMS
from winnow.config import AlarmsSection
from winnow.config_file import validate, value_at
from winnow.errors import ConfigError, near_miss
from winnow.metrics import is_step
from winnow.records import Alarm

PREFIX = "alarm/"
DEFAULTS: Mapping[str, Any] = MappingProxyType({})  # a configuration in which every limit has its default
LONGEST_VALUE = 60  # characters of a value in a text
LONGEST = 50  # steps that some rule compares, whatever the limits


class Alarms:
    """The alarms of one run with these resolved `settings`. Evaluations before step `evaluated_since` are ignored."""

    def __init__(self, settings: Mapping[str, Any] = DEFAULTS, *, evaluated_since: int = 0) -> None:
        self._settings = settings
        self._limits = limits = _section(settings)
        self._kinds = [kind for kind in ALARMS if kind.name not in limits.off]
        configured = (limits.steps, limits.untrained_steps, 2 * limits.values_steps, limits.no_learning_steps)
        self._past = Past(max(LONGEST, 3 * BLOCK, *configured), evaluated_since)  # at least the rows that a rule reads
        self._held: dict[str, int] = {}  # the last step at which each alarm held
        self._between: dict[str, float] = {}  # an evaluation that belongs to the row of the next step
        self.begun: tuple[Alarm, ...] = ()  # raised at the newest step; these were clear before

    def remember(self, rows: Iterable[Row], *, evaluated_since: int = 0) -> None:
        """Add the log's rows of the steps before a resume, and the evaluation before the next step."""
        self._past.evaluated_since = evaluated_since
        for row in rows:
            if is_step(row):
                self._add(row)
                held = [name.removeprefix(PREFIX) for name, value in row.items() if name.startswith(PREFIX) and value]
                self._held |= dict.fromkeys(held, int(row["step"]))
            else:
                self._between = dict(row)

    def evaluated(self, metrics: Row) -> None:
        """Add an evaluation of the weights before the next step."""
        self._between = dict(metrics)

    def at_end(self, step: int) -> tuple[Alarm, ...]:
        """The alarms that an evaluation after the last step raises."""
        if self._between:
            self.judge({"step": step})
            return self.begun
        return ()

    def metrics(self, step: int, metrics: Row) -> dict[str, float]:
        """`alarm/{name}` = 1 for each alarm that holds at this step. `begun` then has those that were clear before."""
        return {f"{PREFIX}{kind.name}": 1.0 for kind, _ in self.judge({**metrics, "step": step})}

    def judge(self, row: Row) -> list[tuple[Kind, Evidence]]:
        """The alarms that hold at a row. A row with only an evaluation raises only alarms that read evaluations. An
        alarm that another one explains does not begin while that one holds; if it held before, it may continue.
        """
        self._add(row)
        step = int(row["step"])
        clear = step - self._limits.clear_steps
        judged = [(kind, kind.rule(self._past, self._limits)) for kind in self._kinds]
        holds = [(kind, evidence) for kind, evidence in judged if evidence is not None]
        explained = {name for kind, _ in holds for name in kind.explains if self._held.get(name, clear - 1) < clear}
        held = [
            (kind, evidence)
            for kind, evidence in holds
            if kind.name not in explained and (is_step(row) or MEASURED in kind.reads)
        ]
        begun = [pair for pair in held if self._held.get(pair[0].name, clear - 1) < clear]
        self.begun = tuple(_alarm(step, kind, evidence, self._settings) for kind, evidence in begun)
        self._held |= {kind.name: step for kind, _ in held}
        return held

    def _add(self, row: Row) -> None:
        self._past.add({**self._between, **row})
        self._between = {}


def alarms_of_run(
    rows: Sequence[Row], settings: Mapping[str, Any] = DEFAULTS, *, evaluated_since: int = 0
) -> list[Alarm]:
    """The alarms of a run from its log, in the order in which they were raised, each with the `last` step it held at.

    `rows` are those of `state.logbook.read_metrics`, including an evaluation after the last step. `settings` is the
    run's resolved configuration. `evaluated_since` is the step from which on the run has been evaluated with its
    present settings (`state.resume.evaluated_since`).
    """
    alarms = Alarms(settings, evaluated_since=evaluated_since)
    raised, open_now = list[Alarm](), dict[str, int]()
    for row in rows:
        held = alarms.judge(row)
        for alarm in alarms.begun:
            open_now[alarm.name] = len(raised)
            raised.append(alarm)
        for kind, _ in held:
            place = open_now[kind.name]
            raised[place] = dataclasses.replace(raised[place], last=int(row["step"]))
    return raised


def check(section: AlarmsSection) -> None:
    """Raise ConfigError for a name in `alarms.off` that no alarm has."""
    names = [kind.name for kind in ALARMS]
    for name in section.off:
        if name not in names:
            raise ConfigError(
                f"alarms.off: there is no alarm {name!r}",
                remedy=near_miss(name, names),
                key="alarms.off",
                code="config.value",
            )


def _section(settings: Mapping[str, Any]) -> AlarmsSection:
    """The limits in a configuration of any version: unknown ones are ignored, missing ones have their defaults."""
    limits = settings.get("alarms")
    known = {k: v for k, v in limits.items() if k in AlarmsSection.model_fields} if isinstance(limits, Mapping) else {}
    return validate({"alarms": known}, source="the run's configuration").alarms


def _alarm(step: int, kind: Kind, evidence: Evidence, settings: Mapping[str, Any]) -> Alarm:
    keys = kind.keys if evidence.keys is None else evidence.keys
    known = {key: value_at(settings, key) for key in keys if not settings or value_at(settings, key) is not None}
    named = ", ".join(key if value is None else f"{key} ({_shown(value)})" for key, value in known.items())
    look = f" Check {named}." if named else ""
    text = f"step {step}: {kind.name}: {evidence.text}. Likely cause: {evidence.cause or kind.cause}.{look}"
    return Alarm(step, kind.name, text, dict(evidence.numbers), known, last=step)


def _shown(value: Any) -> str:
    """A value for a sentence; members by their names."""
    several = value if isinstance(value, (list, tuple)) else [value]
    text = ", ".join(_name(one) for one in several) or "none"
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def _name(value: Any) -> str:
    if isinstance(value, Mapping):
        parts = value.get("parts")
        return str(value.get("use") or (_shown(parts) if parts else "a table"))
    return f"{value:g}" if isinstance(value, float) else str(value)
