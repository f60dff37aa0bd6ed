"""A run as data of the page: its measurements, and the rollouts that the file includes.

The page's JSON is `report_data` of the text of each run. Numbers that are not finite are null.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from winnow.alarms.watch import alarms_of_run
from winnow.errors import ConfigError
from winnow.evaluation.comparison import CATEGORIES, Comparison
from winnow.metrics import meaning
from winnow.run_view.configuration import Change, changes_in, evaluations, heading, program
from winnow.run_view.decisions import decisions
from winnow.run_view.panels import RunPanel, panels
from winnow.run_view.summary import Row
from winnow.run_view.tokens import tokenizer_of
from winnow.state.foreign import open_log
from winnow.state.logbook import log_notes, read_metrics
from winnow.state.rollout_files import logs_none
from winnow.state.saved_runs import Manifest, manifest_of
from winnow.version import __version__
from winnow.view.text import one_line, shorten
from winnow_lab.report.evaluations import ComparedFolders
from winnow_lab.report.groups import LONGEST, included
from winnow_lab.report.headline import headline, ledger, total
from winnow_lab.report.html import encoded, plain, with_list
from winnow_lab.report.rollouts import NAME, GroupPlace, LoggedSteps, TokenPieces, cut, group_data

ROOM = 2_000_000  # bytes of changed problems, of all comparisons of two evaluations
FORMAT = 1
MOST_PLACES = 10_000  # groups in the table of the allocation
LONGEST_SERVED = 200_000  # characters of a text in a step that is served separately
MOST_CHANGES = 500  # the newest changes that are shown


def evaluation_data(name: str, compared: ComparedFolders) -> dict[str, Any]:
    """The comparisons of two evaluations, with the title `name`."""
    room = ROOM // max(1, len(compared.comparisons))
    return {
        "name": cut(name, NAME),
        "models": {"other": cut(compared.models.other, NAME), "model": cut(compared.models.model, NAME)},
        "notes": [cut(note, 5 * NAME) for note in compared.notes],
        "comparisons": [_comparison(one, room) for one in compared.comparisons],
    }


def _comparison(one: Comparison, room: int) -> dict[str, Any]:
    return {
        "task": cut(one.task, NAME),
        "mode": one.mode,
        "problems": one.problems,
        "other": one.other,
        "model": one.model,
        "interval": list(one.interval),
        "p_value": one.test.p_value,
        "won": len(one.won),
        "lost": len(one.lost),
        "categories": [{"label": CATEGORIES[of.category], **of._asdict()} for of in one.categories],
        "changes": list(_fitting(one, room)),
    }


def _fitting(one: Comparison, room: int) -> Iterator[dict[str, Any]]:
    """The problems that changed most, alternately a better and a worse one, as many as fit in `room` bytes."""
    for pair in itertools.zip_longest(one.won, one.lost):
        for better, change in zip((True, False), pair, strict=True):
            if change is None:
                continue
            texts = {name: cut(value, LONGEST) for name, value in change._asdict().items() if isinstance(value, str)}
            data = {"better": better, **change._asdict(), **texts, "id": cut(change.id, NAME)}
            room -= len(encoded(data))
            if room < 0:
                return
            yield data


Steps = Mapping[int, Sequence[GroupPlace]]


class RunInFile(NamedTuple):
    """A run as JSON; notes for the author of the file, such as the reason for missing rollouts; numbers of rollouts."""

    text: str
    notes: list[str]
    included: int
    of: int


@dataclass
class ReportedRun:
    """A run folder and its name on the page. The tokenizer is loaded once, when rollouts are read."""

    path: Path
    name: str
    log: LoggedSteps = field(init=False)

    def __post_init__(self) -> None:
        self.log = LoggedSteps(self.path)

    def in_file(self, limit: int) -> RunInFile:
        """The run with rollouts up to `limit` bytes.

        Raises DataError if its metrics cannot be read.
        """
        rows, steps, manifest = read_metrics(self.path), self.log.steps(), manifest_of(self.path)
        pieces, unknown = self._pieces if steps else (None, "")
        chosen = included(self.log, steps, pieces, limit)
        why = chosen.why(steps) if steps else _none(self.path)
        notes = [note for note in (*self._notes(manifest), unknown, *chosen.notes) if note]
        rollouts = {"included": sum(chosen.rollouts.values()), "why": why, "notes": notes}
        fields = self._fields(rows, manifest, steps, rollouts, chosen.rollouts)
        text = with_list(fields, "groups", chosen.in_order)
        return RunInFile(text, [*notes, *[why] * bool(why)], fields["rollouts"]["included"], fields["rollouts"]["of"])

    def served(self) -> str:
        """The run as JSON without rollouts, which `step` returns. Raises like `in_file`."""
        rows, steps, manifest = read_metrics(self.path), self.log.steps(), manifest_of(self.path)
        rollouts = {"included": 0, "why": "" if steps else _none(self.path), "notes": self._notes(manifest)}
        return with_list(self._fields(rows, manifest, steps, rollouts, {}), "groups", [])

    def files(self) -> list[tuple[str, int, int]]:
        """Name, time and size of all that is directly in the folder: a step of a run in progress changes some of it."""
        try:
            with os.scandir(self.path) as entries:
                return sorted(map(_seen, entries))
        except OSError:
            return []

    def step(self, step: int) -> Iterator[str]:
        """The groups of a step as JSON, one by one. Raises DataError if the step is not logged."""
        file, groups = self.log.file(step), self.log.steps().get(step, [])
        pieces, _ = self._pieces
        return (encoded(group_data(file, place, pieces, longest=LONGEST_SERVED)) for place in groups)

    def load_tokenizer(self) -> None:
        """Load the tokenizer now, if there are rollouts to read."""
        if self.log.steps():
            _ = self._pieces

    @cached_property
    def _pieces(self) -> tuple[TokenPieces | None, str]:
        tokenizer, unknown = tokenizer_of(self.path)
        return None if tokenizer is None else TokenPieces(tokenizer), unknown

    def _notes(self, manifest: Manifest) -> list[str]:
        """Notes on rollouts that are not logged, or cannot be read."""
        log = manifest.config.get("log")
        every = log.get("every") if isinstance(log, Mapping) else None
        notes = [*log_notes(self.path), *self.log.notes]
        if isinstance(every, int) and 1 < every < 10**9:
            notes.append(f"rollouts are logged for one step in {every:,} (log.every)")
        return notes

    def _fields(
        self,
        rows: Sequence[Row],
        manifest: Manifest,
        steps: Steps,
        rollouts: Mapping[str, Any],
        here: Mapping[int, int],
    ) -> dict[str, Any]:
        names = list(dict.fromkeys(name for row in rows for name in row))
        config, changes, compared = manifest.config, changes_in(manifest.data), evaluations(manifest.data)
        of = sum(place.count for places in steps.values() for place in places)
        return {
            "name": shorten(one_line(self.name), NAME),
            "subtitle": one_line(heading(config) or program(manifest.data)),
            "headline": headline(rows, compared),
            "held_out_since": compared.since if compared.held_out else None,
            "config": config,
            "changes": [_change(change) for change in changes[-MOST_CHANGES:]],
            "panels": [_panel(panel) for panel in panels(rows, compared)],
            "ledger": ledger(rows),
            "decisions": decisions(self.path),
            "allocation": [] if _is_uniform(config) else _allocation(steps),
            "allocation_of": sum(place.verified > 0 for places in steps.values() for place in places),
            "prompts_skipped": total(rows, "budget/prompts_skipped") or 0,
            "alarms": _alarms(rows, config, compared.since),
            "metrics": _metrics(rows),
            "meanings": {name: text for name in names if (text := meaning(name))},
            "steps": [_step(step, places, here.get(step, 0)) for step, places in steps.items()],
            "rollouts": {**rollouts, "of": of},
        }


def _seen(entry: os.DirEntry[str]) -> tuple[str, int, int]:
    try:
        about = entry.stat()
    except OSError:  # a link to nothing
        return entry.name, 0, 0
    return entry.name, about.st_mtime_ns, about.st_size


def _none(run: Path) -> str:
    """Why a run has no rollouts to read."""
    log = open_log(run)
    if log is not None:
        return log.absence(None)[0]
    if logs_none(run):
        return 'no rollouts are logged (log.rollouts = "none")'
    return "no rollouts are logged (keys log.rollouts and log.every), or no step is finished yet"


def report_data(
    runs: Sequence[str], *, served: bool, limit: int, made: str | None, evaluations: Sequence[Mapping[str, Any]] = ()
) -> str:
    """The whole JSON of the page, from runs that are already encoded, and `evaluation_data` of pairs of models."""
    fields = {"format": FORMAT, "winnow": __version__, "served": served, "limit_bytes": limit}
    fields |= {"evaluations": list(evaluations)} | ({"made": made} if made else {})
    return with_list(fields, "runs", runs)


def _panel(panel: RunPanel) -> dict[str, Any]:
    fields = dataclasses.asdict(panel)
    fields["series"] = [{**dataclasses.asdict(series), "label": series.label} for series in panel.series]
    fields["spans"] = [{"label": span.label, "from": span.first, "to": span.last} for span in panel.spans]
    return fields


def _metrics(rows: Sequence[Row]) -> dict[str, Any]:
    """The step of each row, and for each metric its numbers and the places of their rows (None: all rows). A metric
    takes only the space of its numbers.
    """
    columns: dict[str, tuple[list[int], list[float | None]]] = {}
    for place, row in enumerate(rows):
        for name, value in row.items():
            if name != "step":
                at, numbers = columns.setdefault(name, ([], []))
                at.append(place)
                numbers.append(_short(value))
    packed = {name: {"at": None if len(at) == len(rows) else at, "y": y} for name, (at, y) in columns.items()}
    return {"steps": [_short(row["step"]) for row in rows], "columns": packed}


def _change(change: Change) -> dict[str, Any]:
    values = (json.dumps(plain(change.get(name)), ensure_ascii=False) for name in ("was", "now"))
    was, now = ("none" if value == "null" else cut(value, NAME) for value in values)
    return {"step": change["step"], "key": cut(change["key"], NAME), "was": was, "now": now}


def _is_uniform(config: Mapping[str, Any]) -> bool:
    """Whether every prompt gets equally many rollouts, so that a table of the allocation is useless."""
    allocate = config.get("allocate")
    return (allocate.get("use") if isinstance(allocate, Mapping) else allocate) == "uniform"


def _allocation(steps: Steps) -> list[dict[str, Any]]:
    """Rollouts and pass rate of each group with a verdict; of a long run, only of evenly chosen groups."""
    groups = [place for places in steps.values() for place in places if place.verified]
    every = -(-len(groups) // MOST_PLACES) or 1
    return [{"pass_rate": _short(place.correct / place.verified), "count": place.count} for place in groups[::every]]


def _alarms(rows: Sequence[Row], config: Mapping[str, Any], since: int) -> list[dict[str, Any]]:
    """The alarms with the run's limits, or with the default limits if those of the manifest cannot be read."""
    try:
        alarms = alarms_of_run(rows, config, evaluated_since=since)
    except ConfigError:  # a manifest may contain anything
        alarms = alarms_of_run(rows, evaluated_since=since)
    return [{"step": alarm.step, "last": alarm.last, "name": alarm.name, "text": alarm.text} for alarm in alarms]


def _step(step: int, places: Sequence[GroupPlace], here: int) -> dict[str, int]:
    return {"step": step, "groups": len(places), "rollouts": sum(place.count for place in places), "included": here}


def _short(number: float | None) -> float | None:
    """The number to nine digits, enough to restore any float32; an integer is unchanged. None if it is not finite."""
    if number is None or number != number or abs(number) == float("inf"):
        return None
    return int(number) if number == int(number) else float(f"{number:.9g}")
