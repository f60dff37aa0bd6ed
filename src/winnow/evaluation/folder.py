"""The folder of an evaluation: its settings, one file of rollouts per task, and the metrics.

evals/mine/
  settings.json   the model and the tasks, by digests; a resume requires the same ones
  gsm8k.jsonl     one line per rollout, written one part of the problems at a time
  metrics.json    the metrics, once every rollout is verified
  report.txt      the same as text, with examples
  against/        the same files for the other model, if `--compare` names one
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
from winnow.evaluation.rollout_lines import parse_row
from winnow.evaluation.saved_evaluation import (
    FORMAT,
    METRICS,
    REPORT,
    SETTINGS,
    differing_keys,
    is_evaluation,
    read_settings,
)
from winnow.state.disk import check_kind, opened, replace_file, write_all, write_json
from winnow.state.log_rows import encode
from winnow.state.run_folder import LOCK, Lock, LockedFolder


@dataclass(frozen=True)
class EvaluationFolder(LockedFolder):
    """The open, locked folder of an evaluation."""

    notes: tuple[str, ...] = ()  # changes of the machine since the start; they do not prevent a resume

    @classmethod
    def open(cls, path: Path, settings: Mapping[str, Any], *, resume: bool) -> Self:
        """Create a folder, or with `resume` open one that contains an evaluation with the same settings.

        `settings` are JSON; the values under "machine" may differ. Raises DataError if the folder cannot be written,
        is not empty (without `resume`), or contains another evaluation (with `resume`).
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


@contextlib.contextmanager
def _as_data_errors(path: Path) -> Iterator[None]:
    """Raise an OSError of the block as a DataError."""
    try:
        yield
    except OSError as error:
        raise _unusable(path, error) from error


@contextlib.contextmanager
def _as_resumable_errors(path: Path) -> Iterator[None]:
    """Raise an OSError of the block as a DataError after which the evaluation can be resumed."""
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


def _check_unchanged(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Return notes about changes of the machine. Raises DataError, naming the keys, if model or tasks changed."""
    changed = differing_keys(*({key: each.get(key) for key in ("model", "tasks")} for each in (before, now)))
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
