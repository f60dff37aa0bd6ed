"""The logs of a run: metrics.jsonl, one row per step, rollouts/, one file per step (see rollout_files.py), and
decisions.jsonl of a run that chooses the sizes of its steps.

A row or a file that cannot be written raises RunFolderError, and no part of it remains. The run should then stop. A
resume from the last checkpoint writes the missing rows again, bit by bit the same except for times and memory, while a
run that continued would have a gap in its logs. This module imports no torch.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from winnow import ranks
from winnow.errors import DataError, RunFolderError
from winnow.metrics import is_step
from winnow.records import Batch, Group, StepReport
from winnow.state.decisions import DECISIONS, Decision, DecisionLog, read_decisions
from winnow.state.disk import is_writable, sync
from winnow.state.folder import has_finished_step, is_checkpoint_path
from winnow.state.foreign import no_run, open_log
from winnow.state.log import METRICS, LineLog, Mark, check_metrics, metrics_line, named, refusals, rows
from winnow.state.manifest import MANIFEST
from winnow.state.rollout_files import INDEX, Kept, RolloutLog, StepFile, files_of


class StepEvidence(Protocol):
    """What a run collects of its logged steps to choose its sizes: `winnow.core.size_plan.RunSizes`."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """The sizes now, as metrics of a step."""

    def add(self, step: int, groups: Sequence[Group], metrics: Mapping[str, float]) -> None:
        """Add a step that is logged."""

    def add_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Add an evaluation or a probe that is logged."""


class Logbook:
    """Writes the logs of a run folder. Rows are in step order, and each is written at once.

    `marks` are the ends of the logs, by name, in the checkpoint from which the run resumes. `rollouts` and `every` are
    the keys `log.rollouts` and `log.every`. `sizes` gets each step and each evaluation once it is logged.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        marks: Mapping[str, Mark] = MappingProxyType({}),
        rollouts: Kept = "all",
        every: int = 1,
        sizes: StepEvidence | None = None,
    ) -> None:
        self._folder = folder
        self._sizes = sizes
        self._groups: Sequence[Group] = ()  # of the step that was begun
        self._metrics = LineLog(folder / METRICS, marks.get(METRICS))
        self._decisions = DecisionLog(folder, marks.get(DECISIONS))
        self._rollouts = RolloutLog(folder, seed=seed, mark=marks.get(INDEX), rollouts=rollouts, every=every)

    def check(self, saved: Path | None = None) -> None:
        """Raise RunFolderError unless the logs can be written and have every row that the checkpoint `saved` relies on.
        Rows may be missing after a power cut or an edit.
        """
        logs: tuple[RolloutLog | LineLog, ...] = (self._rollouts, self._metrics, self._decisions.log)
        for log in logs:
            if (loss := log.lost()) is not None:
                raise RunFolderError(
                    f"{log.path} lacks rows that it had when the checkpoint {saved} was saved: {loss}; {log.extent()}",
                    remedy="restore the file; or delete the checkpoint, to resume from the one before it; "
                    f'or, to resume without these rows, remove "logs" from {saved}/manifest.json',
                    code="run_folder.damaged",
                )

        for path in (self._metrics.path, self._rollouts.path, self._folder / INDEX):
            if path.exists() and not is_writable(path):
                raise RunFolderError(
                    f"cannot write {path}: permission denied",
                    remedy="allow it (chmod u+w), then start again",
                    code="run_folder.unwritable",
                )

    def sync(self, step: int) -> dict[str, Mark]:
        """Wait until every row is on the disk, and return the marks at the ends of the rows before `step`, by log.

        The checkpoint of `step` relies on these rows. `step` is the newest one with rows, or the next. Raises
        RunFolderError where that fails.
        """
        with refusals(self._folder):
            sync(self._folder)
        marks = {INDEX: self._rollouts.sync(step), METRICS: self._metrics.sync(step)}
        marks[DECISIONS] = self._decisions.sync(step)
        return {name: mark for name, mark in marks.items() if mark is not None}

    def begin(self, step: int, groups: Sequence[Group], batches: Sequence[Batch]) -> None:
        """Start to write a step's rollouts, which takes place in a thread while the policy is updated.

        `groups` are filled up to their advantages. `TrainingSequence.group` in the batches is the position of a group.
        """
        weights = {row.key: row.weight for batch in batches if batch.epoch == 0 for row in batch.sequences}
        self._groups = groups
        self._rollouts.begin(step, groups, weights)

    def finish(self, step: int, metrics: Mapping[str, float]) -> StepReport:
        """Log a finished step: the rollouts that `begin` was given, then its metrics, whose row marks it as complete.

        Raises KeyError for a metric that is not in metrics.py, ValueError for a group that is not filled, and
        RunFolderError where writing fails.
        """
        metrics = {**metrics, **(self._sizes.metrics if self._sizes else {})}
        with ranks.together("writing the log"):
            row = metrics_line(step, metrics)
            self._rollouts.finish(step)
            self._metrics.append(step, row)
        if self._sizes:
            self._sizes.add(step, self._groups, metrics)
        self._groups = ()
        return StepReport(step=step, metrics=metrics)

    def write(
        self, step: int, metrics: Mapping[str, float], groups: Sequence[Group], batches: Sequence[Batch]
    ) -> StepReport:
        """`begin` and `finish`."""
        self.begin(step, groups, batches)
        return self.finish(step, metrics)

    def close(self) -> None:
        """Remove what was begun of a step that does not end."""
        self._rollouts.discard()

    def write_between(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of an evaluation or a probe before `step`. Readers merge them with the step's row.

        Raises as `write`.
        """
        with ranks.together("writing the log"):
            self._metrics.append(step, metrics_line(step, metrics))
        if self._sizes:
            self._sizes.add_evaluation(metrics)

    def metrics(self) -> list[dict[str, float]]:
        """The rows of the log, as `read_metrics` returns them; none where the log does not exist yet."""
        return read_metrics(self._metrics.path) if self._metrics.path.exists() else []

    def decided(self, step: int) -> Decision | None:
        """The sizes that the run chose before `step`; None if it has not chosen them yet. Raises DataError."""
        return read_decisions(self._folder).get(step)

    def decide(self, step: int, decision: Mapping[str, Any]) -> None:
        """Log the sizes that the run chose before `step`, and wait until they are on the disk. Raises as `write`."""
        self._decisions.append(step, decision)

    def truncate_from(self, step: int, *, but_evaluation: bool = False, decisions: bool = False) -> bool:
        """Remove `step` and everything after it before a resume, incomplete rows and files included.

        With `but_evaluation`, an evaluation before `step` stays, as it was made with the weights that are resumed.
        Returns whether one stays. Decisions before later steps stay, and the resumed run makes the same ones, unless
        `decisions` is true.

        Raises DataError for a damaged row in a log without a mark, RunFolderError where removing fails.
        """
        self._rollouts.remove_from(step)
        self._decisions.cut_from(step if decisions else None)
        return self._metrics.cut_from(step, lambda row: but_evaluation and _is_evaluation(row, step))


def read_metrics(path: Path) -> list[dict[str, float]]:
    """One dictionary per step, in step order, evaluations merged in; "step" is a key of each.

    `path` is the file or its run folder, or that of another trainer. Raises DataError, with the line, for a line that
    is not a row, and for a run that has not finished a step.
    """
    refuse_new(path)
    log = open_log(path)
    if log is not None:
        return log.rows()
    if path.is_dir() and not os.path.lexists(path / METRICS) and not (path / MANIFEST).exists():
        raise no_run(path)
    path = path / METRICS if path.is_dir() else path
    steps: dict[int, dict[str, float]] = {}
    for number, row in rows(path):
        with named(path, number, "a row of metrics"):
            check_metrics(row)
        steps.setdefault(row["step"], {}).update({k: math.nan if v is None else v for k, v in row.items()})
    return [steps[step] for step in sorted(steps)]


def is_logged(run: Path) -> bool:
    """Whether a folder has metrics: those of winnow, or the log of another trainer."""
    return (run / METRICS).is_file() or open_log(run) is not None


def is_new(run: Path) -> bool:
    """Whether a folder is a run that has no log yet, as it has not finished a step: it runs, or it failed before."""
    begun = (run / MANIFEST).is_file() and not is_checkpoint_path(run)
    return begun and not os.path.lexists(run / METRICS) and not has_finished_step(run)


def refuse_new(run: Path) -> None:
    """Raise DataError where `is_new`."""
    if is_new(run):
        raise DataError(
            f"{run} has not finished a step yet, so there is no {METRICS} in it",
            remedy="wait for its first step, or name another run",
            code="data.empty",
        )


def log_notes(run: Path) -> list[str]:
    """What the log of another trainer lacks, or is not read of it, in sentences; none of a run of winnow.

    Raises DataError if it is damaged.
    """
    log = open_log(run if run.is_dir() else run.parent)
    return [] if log is None else log.notes()


def totals(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The totals over the rows of a run: "steps", and the sums of budget/..., seconds/... and eval/seconds by name."""
    out: dict[str, float] = {"steps": 0}
    for row in rows:
        out["steps"] += is_step(row)
        for name, value in row.items():
            if name.startswith(("budget/", "seconds/", "eval/seconds")) and not math.isnan(value):
                out[name] = out.get(name, 0) + value
    return out


def read_rows(path: Path, step: int | None = None, columns: Collection[str] | None = None) -> Iterator[dict[str, Any]]:
    """The rollouts of a run, one by one, as {column: value}; rollout_columns.py lists the columns.

    `step` and `columns` limit them where given. Lists are arrays, and JSON is decoded. `path` is a run folder, its
    folder of rollouts, or a file of it. A part of a file is read at a time. Raises DataError, naming the file, where it
    does not exist or was not written by a run.
    """
    names = columns if columns is None or step is None else {*columns, "step"}
    for file in map(StepFile, files_of(path, step)):
        for first, end in file.parts:
            yield from (row for row in file.rows(first, end, names) if step is None or row["step"] == step)


def _is_evaluation(line: bytes, step: int) -> bool:
    """Whether a row is the evaluation before `step`. Such a row is the first one of its step."""
    try:
        row = json.loads(line)
    except ValueError:
        return False
    return isinstance(row, dict) and row.get("step") == step and "eval/seconds" in row
