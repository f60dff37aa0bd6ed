"""Logs of JSON lines: rows in step order, each with its step first, appended whole or not at all.

A resume cuts the log at its first step, and for that reads only the rows after a checkpoint's mark (log_marks.py).
This module imports no torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from winnow import ranks
from winnow.errors import DataError, RunFolderError
from winnow.state.disk import InTheWay, check_kind, opened, write_all
from winnow.state.log_marks import Mark, lost, synced_mark

_STEP = re.compile(rb'\{"step":\s*(\d{1,15})[,}]')


class LineLog:
    """One file that this process appends to. `mark` is its end in the checkpoint from which the run resumes."""

    def __init__(self, path: Path, mark: Mark | None = None) -> None:
        self.path = path
        self._mark = mark
        self._newest: tuple[int, int] | None = None  # the newest step in the file, and the byte at which it starts

    @property
    def known(self) -> bool:
        """Whether a checkpoint has a mark of the file, or this process wrote to it."""
        return self._mark is not None or self._newest is not None

    def append(self, step: int, row: bytes) -> None:
        """Append a row, which ends in a line break, whole or not at all. Raises RunFolderError."""
        if not ranks.is_writer():
            return
        # Before the write: a signal right after it must not leave a row that `sync` counts to an earlier step
        if self._newest is None or self._newest[0] < step:
            self._newest = step, self.path.stat().st_size if self.path.exists() else 0
        append(self.path, row)

    def lost(self) -> str | None:
        """What the file lacks of the rows before the mark, in words; None where all exist, or without a mark.

        Raises RunFolderError where something else is in the place of the file.
        """
        with refusals(self.path):
            check_kind(self.path, "a file")
            return None if self._mark is None else lost(self.path, self._mark)

    def marked_rows(self) -> Iterator[dict[str, Any]]:
        """Every row before the mark. Raises DataError."""
        if self._mark is None:
            return
        end = 0
        for number, line in enumerate(_lines(self.path, 0), start=1):
            end += len(line)
            if end > self._mark.bytes:
                return
            yield row_of(self.path, number, line)

    def sync(self, step: int) -> Mark | None:
        """Wait until every row is on the disk, and return the mark at the end of the rows before `step`.

        `step` is the newest one with rows, or the next. None without a file. Raises RunFolderError.
        """
        newest, began = self._newest or (-1, 0)
        with refusals(self.path):
            if not self.path.exists():
                return None
            return synced_mark(self.path, began if newest >= step else None)

    def cut_from(self, step: int, stays: Callable[[bytes], bool] = lambda row: False) -> bool:
        """Remove the rows of `step` and everything after them, an incomplete last line included.

        The first of these rows stays if `stays` returns True for it; this is returned. The file is cut once, at the
        start of a row, so an interruption leaves it either whole or cut. A damaged row after a mark was never synced,
        and is removed with all that follow.

        Raises DataError for a damaged row in a file that is not `known`, RunFolderError where cutting fails.
        """
        with refusals(self.path):
            check_kind(self.path, "a file")
        if not self.path.exists():
            return False
        end, first = self._end_before(step)
        stay = bool(first) and stays(first)
        if ranks.is_writer():
            with refusals(self.path), opened(self.path, os.O_WRONLY) as descriptor:
                os.ftruncate(descriptor, end + len(first) * stay)
        self._newest = step, end
        return stay

    def _end_before(self, step: int) -> tuple[int, bytes]:
        """The number of bytes before the first row of `step` or later, and that row, which is empty if there is none.

        In a `known` file, a damaged row also ends the count.
        """
        end = 0 if self._mark is None else self._mark.bytes
        if self._newest is not None and self._newest[0] <= step:
            end = self._newest[1]
        try:
            for number, line in enumerate(_lines(self.path, end), start=1):
                if step_of(self.path, number, line) >= step:
                    return end, line
                end += len(line)
        except DataError:
            if not self.known:
                raise
        return end, b""


def rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Parsed rows with their line numbers; an incomplete last line is ignored. Raises DataError, with the line."""
    try:
        check_kind(path, "a file", follow=True)  # opening a pipe would wait for its writer
        path.open("rb").close()
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}", remedy="name a run folder or its log", code="data.unreadable"
        ) from error
    for number, line in enumerate(_lines(path, 0), start=1):
        yield number, row_of(path, number, line)


def extent(path: Path) -> str:
    """The last step of a log, in words for a message."""
    last: int | None = None
    with contextlib.suppress(DataError, OSError):
        for number, line in enumerate(_lines(path, 0), start=1):
            last = step_of(path, number, line)
    return "it contains no whole row" if last is None else f"its last whole row is of step {last}"


def ends_cut(path: Path) -> bool:
    """Whether a log's last row is incomplete: it is being written, or the writer was interrupted. Readers skip it."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.seek(0, os.SEEK_END) > 0 and file.seek(-1, os.SEEK_END) >= 0 and file.read() != b"\n"
    return False


def append(path: Path, row: bytes) -> None:
    """Append whole rows or nothing. Raises RunFolderError."""
    with refusals(path), opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as descriptor:
        end = os.fstat(descriptor).st_size
        try:
            write_all(descriptor, row)
        except OSError:
            os.ftruncate(descriptor, end)
            raise


@contextlib.contextmanager
def refusals(path: Path) -> Iterator[None]:
    """An OSError inside becomes a RunFolderError that names the file and a remedy."""
    try:
        yield
    except OSError as error:
        remedy = "move it away" if isinstance(error, InTheWay) else "make room"
        raise RunFolderError(
            f"cannot write {path}: {error.strerror}",
            remedy=f"{remedy}, then resume the run",
            code="run_folder.unwritable",
        ) from error


@contextlib.contextmanager
def named(path: Path, number: int, what: str) -> Iterator[None]:
    """A TypeError or ValueError inside becomes a DataError that names file and line."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{path}, line {number}: not {what} ({error})",
            remedy="repair or delete the line",
            code="data.malformed",
        ) from error


def _lines(path: Path, start: int) -> Iterator[bytes]:
    """Each whole line from byte `start` on, without an incomplete last one."""
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield line


def step_of(path: Path, number: int, line: bytes) -> int:
    """The step of a row. Only the start of the row is parsed, as rows can be long."""
    match = _STEP.match(line)
    return int(match[1]) if match else int(row_of(path, number, line)["step"])


def row_of(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """A parsed row. Raises DataError where it is not JSON, or has no step."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}, line {number}: not JSON ({error})", remedy="repair or delete the line", code="data.malformed"
        ) from error
    step = row.get("step") if isinstance(row, Mapping) else None
    if type(step) is not int or not 0 <= step < 10**15:
        raise DataError(
            f"{path}, line {number}: not a row of a run's log: it has no step",
            remedy="name a run folder or its metrics.jsonl; if this file is one, delete the line"
            if number == 1
            else "delete the line",
            code="data.malformed",
        )
    return cast(dict[str, Any], row)
