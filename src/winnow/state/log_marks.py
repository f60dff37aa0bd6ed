"""Where a log ended when a checkpoint was saved, and whether it still holds every row up to there.

A mark is a length and a digest of the bytes before it. Rows are only ever appended and are synced before they are
marked, so a file that is long enough and has the same bytes there is the same file. This module imports no torch.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from winnow.state.disk import opened

TAIL_BYTES = 2**16  # compared before the mark: the last rows there, which differ from those of any other run


@dataclass(frozen=True, slots=True)
class Mark:
    """The end of a log."""

    bytes: int
    tail_sha256: str  # of its last 64 KiB, or of all of it


def synced_mark(path: Path, end: int | None = None) -> Mark:
    """The mark of a log's byte `end`, or of its present end, once all of it is on the disk. Raises OSError."""
    with opened(path, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)
        end = os.fstat(descriptor).st_size if end is None else end
        return Mark(end, _tail(descriptor, end))


def mark_of(descriptor: int) -> Mark:
    """The mark of an open file's present end. Raises OSError."""
    end = os.fstat(descriptor).st_size
    return Mark(end, _tail(descriptor, end))


def lost(path: Path, mark: Mark) -> str | None:
    """What a log lacks of the rows before its mark, in words; None when it has them all. Raises OSError."""
    if not path.exists():
        return f"there is no such file, and there were {mark.bytes} bytes"
    with opened(path, os.O_RDONLY) as descriptor:
        size = os.fstat(descriptor).st_size
        if size < mark.bytes:
            return f"there are {size} bytes, and there were {mark.bytes}"
        return None if _tail(descriptor, mark.bytes) == mark.tail_sha256 else "its rows there are others"


def _tail(descriptor: int, end: int) -> str:
    start = max(0, end - TAIL_BYTES)
    return hashlib.sha256(os.pread(descriptor, end - start, start)).hexdigest()
