"""The folder of an evaluation: what was asked, a file of rollouts per task, and the numbers.

evals/mine/
  settings.json   what is asked of which model, by digests; an evaluation that goes on has to ask the same
  gsm8k.jsonl     a line per rollout, written a part of the problems at a time
  metrics.json    the numbers, once everything is asked
  report.txt      the same as text, with examples
  against/        the same of the model that it is compared with, where one was named
  .lock           held while a process writes here
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from winnow.errors import DataError, resumable
from winnow.report.evaluations.rollout_lines import parsed_row
from winnow.report.evaluations.saved_evaluation import (
    FORMAT,
    METRICS,
    REPORT,
    SETTINGS,
    differing,
    is_evaluation,
    read_settings,
)
from winnow.state.disk import check_kind, opened, replace_file, write_all, write_json
from winnow.state.log_rows import encode
from winnow.state.run_folder import LOCK, Lock, LockedFolder


@dataclass(frozen=True)
class EvaluationFolder(LockedFolder):
    """That of an evaluation."""

    notes: tuple[str, ...] = ()  # what differs since it was begun, and changes no number by itself

    @classmethod
    def open(cls, path: Path, settings: Mapping[str, Any], *, resume: bool) -> Self:
        """A new folder, or with `resume` one that holds an evaluation with the same settings.

        `settings` are JSON; what stands under "machine" may differ. Raises DataError for a folder that holds anything
        without `resume`, or another evaluation with it, and for one that cannot be written.
        """
        with _refusals(path):
            path.mkdir(parents=True, exist_ok=True)
            lock = Lock.take(path / LOCK)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(lock.release)
            notes: tuple[str, ...] = ()
            if check_free(path, resume=resume):
                with _refusals(path):
                    write_json(path / SETTINGS, {"winnow_evaluation": FORMAT, **settings})
            else:
                notes = _compared(path, read_settings(path), settings)
            on_failure.pop_all()
        return cls(path, lock, notes)

    def complete_rows(self, task: str, parts: Sequence[int]) -> list[dict[str, Any]]:
        """The rows of the parts that were written whole, of so many rows each; what lies behind them is removed, and
        numbers that an evaluation left which has to go on.

        Raises DataError for a line that is no row.
        """
        file = self._rows(task)
        with _refusals(self.path):
            check_kind(file, "a file")
            lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]
        count = max((total for total in itertools.accumulate(parts) if total <= len(whole)), default=0)
        rows = [parsed_row(line, f"{file}:{number}") for number, line in enumerate(whole[:count], start=1)]
        with _refusals(self.path):
            if count < len(lines):
                os.truncate(file, sum(map(len, whole[:count])))
            if count < sum(parts):
                (self.path / METRICS).unlink(missing_ok=True)
                (self.path / REPORT).unlink(missing_ok=True)
        return rows

    def append(self, task: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the rows of a part, which are on the disk when this returns. Raises DataError where that fails."""
        with _going_on(self.path), opened(self._rows(task), os.O_WRONLY | os.O_CREAT | os.O_APPEND) as descriptor:
            write_all(descriptor, b"".join(encode(row) + b"\n" for row in rows))
            os.fsync(descriptor)

    def finish(self, metrics: Mapping[str, Any], report: str) -> None:
        """Write the numbers and the report. Raises DataError, as `append` does, where that fails."""
        with _going_on(self.path):
            replace_file(self.path / REPORT, report.encode() + b"\n")
            write_json(self.path / METRICS, metrics)

    def _rows(self, task: str) -> Path:
        return self.path / f"{task}.jsonl"


def check_resumable(path: Path) -> None:
    """Raise DataError where there is no evaluation to go on with."""
    if not is_evaluation(path):
        raise DataError(f"there is no evaluation to resume in {path}", remedy="start a new one", code="data.missing")


def check_free(path: Path, *, resume: bool) -> bool:
    """Whether a folder is still empty. Raises DataError where it is not, unless `resume` goes on with what it holds."""
    with _refusals(path):
        there = (
            sorted(entry.name for entry in path.iterdir() if not entry.name.startswith(".")) if path.exists() else []
        )
    if there and not (resume and SETTINGS in there):
        what = "an evaluation" if SETTINGS in there else ", ".join(there[:3])
        ways = "resume it (on the command line --resume), or " if SETTINGS in there else ""
        error = DataError(f"{path} already contains {what}", remedy=f"{ways}choose another folder", code="data.exists")
        raise resumable(error) if SETTINGS in there else error
    return not there


@contextlib.contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """What the disk refuses, as a DataError."""
    try:
        yield
    except OSError as error:
        raise _unusable(path, error) from error


@contextlib.contextmanager
def _going_on(path: Path) -> Iterator[None]:
    """What the disk refuses of an evaluation under way, which a resume goes on with."""
    try:
        yield
    except OSError as error:
        raise resumable(
            DataError(
                f"cannot write into {path}: {error.strerror or error}",
                remedy="make room, then resume the evaluation",
                code="data.unwritable",
            )
        ) from error


def _unusable(path: Path, error: OSError) -> DataError:
    return DataError(
        f"cannot use the folder {path} for an evaluation: {error.strerror or error}",
        remedy="choose another",
        code="data.unwritable",
    )


def _compared(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Notes about a machine that differs. Raises DataError, naming the keys, where something else is asked."""
    changed = differing(*({key: each.get(key) for key in ("model", "tasks")} for each in (before, now)))
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise DataError(
            f"{path} contains an evaluation with other settings: {', '.join(changed[:3])}{more} differ",
            remedy="use the same settings to resume it, or choose another folder",
            code="data.changed",
        )
    was, is_now = dict(before.get("machine") or {}), now["machine"]
    return tuple(
        f"{key} was {was.get(key)!r} when the evaluation began and is {is_now[key]!r} now: the remaining rollouts may "
        f"be others than they would have been"
        for key in is_now
        if was.get(key) != is_now[key]
    )
