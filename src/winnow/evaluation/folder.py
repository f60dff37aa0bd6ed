"""The folder of an evaluation: its settings, one file of rollouts per task, and the metrics.

evals/mine/
  settings.json   the model and the tasks, by digests; a resume requires the same ones
  gsm8k.jsonl     one line per rollout, written one part of the problems at a time
  metrics.json    the metrics, once every rollout is verified
  report.txt      the same as text, with examples
  against/        the same files for the other model, if `--compare` names one
  .lock           held while a process writes here

The contents are checked when they are read, as they may come from anyone.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pydantic

from winnow.config import Section, leaves
from winnow.errors import DataError, resumable
from winnow.records import Cause, Finish, Group, Kind, Outcome, Prompt, Rollout
from winnow.state.disk import check_kind, errors_as, opened, replace_file, write_all, write_json
from winnow.state.folder import LOCK, Lock, LockedFolder
from winnow.state.log import encode

Row = Mapping[str, Any]
SETTINGS, METRICS, REPORT, AGAINST = "settings.json", "metrics.json", "report.txt", "against"
FORMAT = 1
MAY_CHANGE = ".config.verify.max_failure_share"  # of a task: no row depends on it, and an error advises to raise it


class _Line(Section):
    mode: str
    prompt_id: str
    prompt: str
    answer: Any
    task: str
    meta: dict[str, Any]
    index: int
    text: str
    length: int
    finish: Finish
    kind: Kind
    correct: bool | None
    reward: float | None
    parts: dict[str, float]
    answer_read: str | None
    cause: Cause | None
    detail: str
    late: bool
    turns: list[str] | None = None


def rows_of(mode: str, groups: Sequence[Group]) -> Iterator[dict[str, Any]]:
    """One row per rollout. `mode` is "sampled" or "greedy". Rows have no times, so they depend on the machine's speed
    only if a verdict does.
    """
    for group in groups:
        for rollout, outcome in zip(group.rollouts, group.outcomes or (), strict=True):
            yield _row(mode, group.prompt, rollout, outcome)


def parse_row(line: bytes, where: str) -> dict[str, Any]:
    """The row of a line. Raises DataError, with its place, for a line that `rows_of` would not write."""
    try:
        row: dict[str, Any] = json.loads(line)
        _Line.model_validate(row)
    except (ValueError, RecursionError, pydantic.ValidationError) as error:
        first = error.errors()[0] if isinstance(error, pydantic.ValidationError) else None
        what = f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}" if first else str(error)
        raise DataError(
            f"{where}: this line is no rollout of an evaluation ({what})",
            remedy="remove the file, then resume the evaluation to sample its task again",
            code="data.malformed",
        ) from error
    return row


def group_by_problem(rows: Sequence[Row], mode: str) -> dict[str, list[Row]]:
    """The rows of each problem in one mode, by its id, in their order."""
    by_id: dict[str, list[Row]] = {}
    for row in rows:
        if row["mode"] == mode:
            by_id.setdefault(row["prompt_id"], []).append(row)
    return by_id


def _row(mode: str, prompt: Prompt, rollout: Rollout, outcome: Outcome) -> dict[str, Any]:
    return {
        "mode": mode,
        "prompt_id": prompt.id,
        "prompt": prompt.text,
        "answer": prompt.answer,
        "task": prompt.task,
        "meta": prompt.meta,
        "index": rollout.index,
        "text": rollout.text,
        "turns": None if rollout.turns is None else list(rollout.turns),
        "length": rollout.length,
        "finish": rollout.finish,
        "kind": outcome.kind,
        "correct": outcome.correct,
        "reward": None if math.isnan(outcome.reward) else outcome.reward,
        "parts": outcome.parts,
        "answer_read": outcome.answer,
        "cause": outcome.cause,
        "detail": outcome.detail,
        "late": outcome.late,
    }


@dataclass(frozen=True)
class TaskRows:
    """The rollouts of a task in a finished evaluation."""

    name: str
    model: str  # its path
    seed: int
    rows: tuple[Row, ...]


def is_evaluation(path: Path) -> bool:
    """Whether a folder contains an evaluation."""
    return (path / SETTINGS).is_file()


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of an evaluation. Raises DataError for a folder without one that this winnow can read."""
    file = path / SETTINGS
    remedy, wrong = "name the folder of an evaluation", (OSError, ValueError, RecursionError)
    with errors_as(DataError, f"cannot read {file}", remedy, code="data.unreadable", of=wrong):
        check_kind(file, "a file")
        settings = json.loads(file.read_bytes())
    if not isinstance(settings, dict) or settings.get("winnow_evaluation") != FORMAT:
        raise DataError(
            f"{file} is not of an evaluation that this winnow can read",
            remedy="name another folder, or use the version that wrote it",
            code="data.malformed",
        )
    return settings


def read_tasks(path: Path, settings: Mapping[str, Any], names: Iterable[str]) -> list[TaskRows]:
    """These tasks of a finished evaluation. Raises DataError for an unfinished or damaged one."""
    try:
        return [_task(path, name, str(settings["machine"]["model"]), settings["tasks"][name]) for name in names]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise damaged_error(path, error) from error


def damaged_error(path: Path, error: Exception) -> DataError:
    """The error for an evaluation whose settings have a form that `winnow eval` does not write."""
    return DataError(
        f"{path / SETTINGS} is damaged ({type(error).__name__}: {error})",
        remedy="evaluate again into a new folder",
        code="data.malformed",
    )


def read_rows(path: Path, task: str, count: int) -> list[dict[str, Any]]:
    """All `count` rows of a task of a finished evaluation. Raises DataError for an unfinished or damaged one."""
    file = path / f"{task}.jsonl"
    remedy = "resume the evaluation, or repair the file"
    with errors_as(DataError, f"cannot read {file}", remedy, code="data.unreadable"):
        check_kind(file, "a file")
        lines = file.read_bytes().splitlines()
    if len(lines) != count or not (path / METRICS).is_file():
        raise DataError(
            f"the evaluation in {path} is not finished: {task} has {len(lines):,} rollouts of {count:,}",
            remedy="resume it",
            code="data.incomplete",
        )
    return [parse_row(line, f"{file}:{number}") for number, line in enumerate(lines, start=1)]


def differing_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The dotted keys in which two settings differ after conversion to JSON."""
    was, is_now = ({k: v for k, v in leaves(json.loads(json.dumps(each)))} for each in (before, now))
    return [".".join(map(str, key)) for key in {**was, **is_now} if was.get(key) != is_now.get(key)]


def _task(path: Path, name: str, model: str, settings: Mapping[str, Any]) -> TaskRows:
    if Path(name).name != name:  # it is part of a path
        raise ValueError(f"{name!r} is no name of a task")
    rows = tuple(read_rows(path, name, int(settings["rows"])))
    sampled, greedy = ({row["prompt_id"] for row in rows if row["mode"] == mode} for mode in ("sampled", "greedy"))
    if not sampled or (greedy and greedy != sampled):
        raise DataError(
            f"{path / name}.jsonl is damaged: its greedy rollouts are of other problems than the sampled ones",
            remedy="remove the file, then resume the evaluation to sample its task again",
            code="data.malformed",
        )
    return TaskRows(name, model, int(settings["config"]["seed"]), rows)


@dataclass(frozen=True)
class EvaluationFolder(LockedFolder):
    """The open, locked folder of an evaluation."""

    notes: tuple[str, ...] = ()  # changes of the machine since the start; they do not prevent a resume

    @classmethod
    def open(cls, path: Path, settings: Mapping[str, Any], *, resume: bool) -> Self:
        """Create a folder, or with `resume` open one that contains an evaluation with the same settings.

        `settings` are JSON; the values under "machine" and those of `MAY_CHANGE` may differ. Raises DataError if the
        folder cannot be written, is not empty (without `resume`), or contains another evaluation (with `resume`).
        """
        with _as_data_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            lock = Lock.take(path / LOCK)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(lock.release)
            notes: tuple[str, ...] = ()
            if check_free(path, resume=resume):
                with _as_data_errors(path):
                    write_json(path / SETTINGS, {"winnow_evaluation": FORMAT, **settings})
            else:
                notes = _check_unchanged(path, read_settings(path), settings)
            on_failure.pop_all()
        return cls(path, lock, notes)

    def complete_rows(self, task: str, parts: Sequence[int]) -> list[dict[str, Any]]:
        """Read the rows of the complete parts; `parts` contains the number of rows of each part.

        Rows after the last complete part are removed, as are metrics and report if rows are missing.
        Raises DataError for a line that is not a row.
        """
        file = self._rows(task)
        with _as_data_errors(self.path):
            check_kind(file, "a file")
            lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]
        count = max((total for total in itertools.accumulate(parts) if total <= len(whole)), default=0)
        rows = [parse_row(line, f"{file}:{number}") for number, line in enumerate(whole[:count], start=1)]
        with _as_data_errors(self.path):
            if count < len(lines):
                os.truncate(file, sum(map(len, whole[:count])))
            if count < sum(parts):
                (self.path / METRICS).unlink(missing_ok=True)
                (self.path / REPORT).unlink(missing_ok=True)
        return rows

    def append(self, task: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the rows of a part; they are on the disk when this returns. Raises DataError if that fails."""
        with (
            _as_resumable_errors(self.path),
            opened(self._rows(task), os.O_WRONLY | os.O_CREAT | os.O_APPEND) as descriptor,
        ):
            write_all(descriptor, b"".join(encode(row) + b"\n" for row in rows))
            os.fsync(descriptor)

    def finish(self, metrics: Mapping[str, Any], report: str) -> None:
        """Write the metrics and the report. Raises DataError, as `append` does, if that fails."""
        with _as_resumable_errors(self.path):
            replace_file(self.path / REPORT, report.encode() + b"\n")
            write_json(self.path / METRICS, metrics)

    def _rows(self, task: str) -> Path:
        return self.path / f"{task}.jsonl"


def check_resumable(path: Path) -> None:
    """Raise DataError if the folder contains no evaluation to resume."""
    if not is_evaluation(path):
        raise DataError(f"there is no evaluation to resume in {path}", remedy="start a new one", code="data.missing")


def check_free(path: Path, *, resume: bool) -> bool:
    """Return whether the folder is empty, apart from hidden files.

    Raises DataError if it is not, unless `resume` is set and the folder contains an evaluation.
    """
    with _as_data_errors(path):
        names = (
            sorted(entry.name for entry in path.iterdir() if not entry.name.startswith(".")) if path.exists() else []
        )
    if names and not (resume and SETTINGS in names):
        content = "an evaluation" if SETTINGS in names else ", ".join(names[:3])
        ways = "resume it (on the command line --resume), or " if SETTINGS in names else ""
        error = DataError(
            f"{path} already contains {content}", remedy=f"{ways}choose another folder", code="data.exists"
        )
        raise resumable(error) if SETTINGS in names else error
    return not names


def _as_data_errors(path: Path) -> contextlib.AbstractContextManager[None]:
    """Raise an OSError of the block as a DataError."""
    problem = f"cannot use the folder {path} for an evaluation"
    return errors_as(DataError, problem, "choose another", code="data.unwritable")


@contextlib.contextmanager
def _as_resumable_errors(path: Path) -> Iterator[None]:
    """Raise an OSError of the block as a DataError after which the evaluation can be resumed."""
    remedy = "make room, then resume the evaluation"
    try:
        with errors_as(DataError, f"cannot write into {path}", remedy, code="data.unwritable"):
            yield
    except DataError as error:
        resumable(error)
        raise


def _check_unchanged(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Return notes about changes of the machine. Raises DataError, naming the keys, if model or tasks changed."""
    keys = differing_keys(*({key: each.get(key) for key in ("model", "tasks")} for each in (before, now)))
    changed = [key for key in keys if not key.endswith(MAY_CHANGE)]
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise DataError(
            f"{path} contains an evaluation with other settings: {', '.join(changed[:3])}{more} differ",
            remedy="use the same settings to resume it, or choose another folder",
            code="data.changed",
        )
    old, new = dict(before.get("machine") or {}), now["machine"]
    return tuple(
        f"{key} was {old.get(key)!r} when the evaluation started and is {new[key]!r} now: the remaining rollouts may "
        f"differ from those of an uninterrupted evaluation"
        for key in new
        if old.get(key) != new[key]
    )
