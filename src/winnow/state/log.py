"""The rows of a run's logs: lines of JSON in step order, appended whole or not at all, and marks of their ends.

A mark is a length and a digest of the last bytes before it, kept in a checkpoint. Rows are only appended, and synced
before they are marked. So a file that is long enough and has the same last bytes before the mark is the same file. A
resume checks the marks, cuts the log at its first step, and for that reads only the rows after a mark.

JSON is strict: a number that is not finite is written as null, and read back as NaN. rollout_columns.py describes the
columns of a rollout. This module imports no torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson

from winnow import metrics as metric_names
from winnow import ranks
from winnow.errors import DataError, RunFolderError
from winnow.records import Prompt, Rollout
from winnow.state.disk import check_kind, errors_as, opened, write_all

METRICS = "metrics.jsonl"  # of a run folder
_STEP = re.compile(rb'\{"step":\s*(\d{1,15})[,}]')
TAIL_BYTES = 2**16  # bytes before the mark that are compared: the last rows, which differ between runs


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

        Raises RunFolderError if something else is in the place of the file.
        """
        with refusals(self.path):
            check_kind(self.path, "a file")
            return None if self._mark is None else lost(self.path, self._mark)

    def extent(self) -> str:
        """The last step of the log, in words for a message."""
        last: int | None = None
        with contextlib.suppress(DataError, OSError):
            for number, line in enumerate(_lines(self.path, 0), start=1):
                last = step_of(self.path, number, line)
        return "it contains no whole row" if last is None else f"its last whole row is of step {last}"

    def marked_rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Every row before the mark, with its line number. Raises DataError."""
        if self._mark is not None:
            yield from rows(self.path, self._mark.bytes)

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


def rows(path: Path, end: float = math.inf) -> Iterator[tuple[int, dict[str, Any]]]:
    """Parsed rows, up to byte `end`, with their line numbers; an incomplete last line is ignored. Raises DataError,
    with the line.
    """
    with errors_as(DataError, f"cannot read {path}", "name a run folder or its log", code="data.unreadable"):
        check_kind(path, "a file", follow=True)  # opening a pipe would wait for its writer
        path.open("rb").close()
    for number, line in enumerate(_lines(path, 0, end), start=1):
        yield number, row_of(path, number, line)


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


def refusals(path: Path) -> contextlib.AbstractContextManager[None]:
    """An OSError inside becomes a RunFolderError that names the file and a remedy."""
    return errors_as(
        RunFolderError, f"cannot write {path}", "make room, then resume the run", code="run_folder.unwritable"
    )


def named(path: Path, number: int, what: str) -> contextlib.AbstractContextManager[None]:
    """A TypeError, ValueError or RecursionError inside becomes a DataError that names file and line."""
    wrong = (TypeError, ValueError, RecursionError)
    problem = f"{path}, line {number}: not {what}"
    return errors_as(DataError, problem, "repair or delete the line", code="data.malformed", of=wrong)


def _lines(path: Path, start: int, end: float = math.inf) -> Iterator[bytes]:
    """Each whole line from byte `start` to `end`, without an incomplete last one."""
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            start += len(line)
            if start > end or not line.endswith(b"\n"):
                return
            yield line


def step_of(path: Path, number: int, line: bytes) -> int:
    """The step of a row. Only the start of the row is parsed, as rows can be long."""
    match = _STEP.match(line)
    return int(match[1]) if match else int(row_of(path, number, line)["step"])


def row_of(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """A parsed row. Raises DataError if it is not JSON, or has no step."""
    with named(path, number, "JSON"):
        row = json.loads(line)
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


@dataclass(frozen=True, slots=True)
class Mark:
    """The end of a log."""

    bytes: int
    tail_sha256: str  # of the last 64 KiB before the end, or of all bytes


def synced_mark(path: Path, end: int | None = None) -> Mark:
    """Sync a log, and return the mark of its byte `end`, or of its present end. Raises OSError."""
    with opened(path, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)
        return mark_of(descriptor, end)


def mark_of(descriptor: int, end: int | None = None) -> Mark:
    """The mark of an open file's byte `end`, or of its present end. Raises OSError."""
    end = os.fstat(descriptor).st_size if end is None else end
    return Mark(end, _tail(descriptor, end))


def lost(path: Path, mark: Mark) -> str | None:
    """How a log differs from the log that was marked, in words; None where it has all rows. Raises OSError."""
    if not path.exists():
        return f"the file does not exist, and had {mark.bytes} bytes"
    with opened(path, os.O_RDONLY) as descriptor:
        size = os.fstat(descriptor).st_size
        if size < mark.bytes:
            return f"the file has {size} bytes, and had {mark.bytes}"
        return None if _tail(descriptor, mark.bytes) == mark.tail_sha256 else "its rows have changed"


def _tail(descriptor: int, end: int) -> str:
    start = max(0, end - TAIL_BYTES)
    return hashlib.sha256(os.pread(descriptor, end - start, start)).hexdigest()


def metrics_line(step: int, metrics: Mapping[str, float]) -> bytes:
    """A row of metrics.jsonl. Raises KeyError for a metric without a meaning."""
    metric_names.check(metrics)
    return encode({"step": step, **metrics}) + b"\n"


def check_metrics(row: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the key, unless every value is a number or null."""
    for name, value in row.items():
        if value is None:
            continue
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not abs(value) <= sys.float_info.max:
            raise ValueError(f"{name}: {type(value).__name__} where a finite number or null belongs")


def prompt_of(row: Mapping[str, Any]) -> Prompt:
    """The prompt in a row of rollouts."""
    return Prompt(
        id=row["prompt_id"],
        tokens=np.asarray(row["prompt_tokens"], dtype=np.int64),
        text=row["prompt"],
        answer=row["answer"],
        task=row["task"],
        meta=row["meta"],
    )


def rollout_of(row: Mapping[str, Any]) -> Rollout:
    """The rollout in a row. Raises ValueError if it was logged without its text."""
    if row["text"] is None:
        raise ValueError('it was logged without text and tokens, as log.rollouts = "kept"; read its row instead')
    return Rollout(
        index=row["index"],
        tokens=np.asarray(row["tokens"], dtype=np.int64),
        logprobs=np.asarray(row["logprobs"], dtype=np.float64),
        text=row["text"],
        finish=row["finish"],
        version=row["version"],
        trainable=None if row["trainable"] is None else np.asarray(row["trainable"], dtype=np.bool_),
        turns=None if row.get("turns") is None else tuple(row["turns"]),
    )


def encode(data: Any) -> bytes:
    """JSON in UTF-8, or in ASCII with escapes where a text has a lone surrogate, which UTF-8 cannot encode."""
    try:
        return orjson.dumps(data, default=_array_as_list, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError:
        return json.dumps(plain(data), separators=(",", ":"), allow_nan=False).encode()


def _array_as_list(value: Any) -> Any:
    """A value that orjson cannot encode, such as a user's array that is not contiguous, as plain data."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"a row cannot contain a {type(value).__name__}: {value!r:.80}")


def plain(value: Any, text: Callable[[str], str] = str) -> Any:
    """The same data in Python's types: None for every number that JSON cannot represent, and `text` applied to every
    text. Raises TypeError for other objects.
    """
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return {plain(k, text): plain(v, text) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v, text) for v in value]
    if value is None or isinstance(value, int):
        return value
    return _array_as_list(value)
