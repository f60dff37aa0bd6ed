"""Marks of the ends of a run's logs in a checkpoint, by which a resume checks that no row is missing.

A mark is a length and a digest of the last bytes before it. Rows are only appended, and synced before they are marked.
So a file that is long enough and has the same last bytes before the mark is the same file. This module imports no
torch.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from winnow.state.disk import opened

TAIL_BYTES = 2**16  # bytes before the mark that are compared: the last rows, which differ between runs


@dataclass(frozen=True, slots=True)
class Mark:
    """The end of a log."""

    bytes: int
    tail_sha256: str  # of the last 64 KiB before the end, or of all bytes


def synced_mark(path: Path, end: int | None = None) -> Mark:
    """Sync a log, and return the mark of its byte `end`, or of its present end. Raises OSError."""
    with opened(path, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)
        end = os.fstat(descriptor).st_size if end is None else end
        return Mark(end, _tail(descriptor, end))


def mark_of(descriptor: int) -> Mark:
    """The mark of an open file's present end. Raises OSError."""
    end = os.fstat(descriptor).st_size
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
