"""Writes the files and folders that a command makes for a person: whole or absent, also on a full disk.

A file is prepared under another name, synced and renamed. A folder is renamed once it is complete. A failed write
raises DataError and leaves nothing that would prevent a second attempt. This module imports no torch.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from winnow.errors import DataError
from winnow.state.disk import InTheWay, check_kind, replace_file

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_new(*outputs: Path) -> None:
    """Check outputs before any work. Raises DataError if one exists or is given twice, or if it cannot be written."""
    for place, path in enumerate(outputs):
        if path in outputs[:place]:
            raise DataError(
                f"two outputs would be written to {path}", remedy="name different files", code="data.exists"
            )
        if os.path.lexists(path):  # unlike exists(), True for a broken link, through which a file would be written
            raise DataError(
                f"{path} already exists", remedy="choose another file to write, or remove it", code="data.exists"
            )
        check_parent(path)


def check_parent(path: Path) -> None:
    """Raise DataError unless the folder of `path` exists and this process may write to it."""
    if not os.path.isdir(path.parent):
        raise DataError(
            f"there is no folder {path.parent} to write {path.name} into",
            remedy="make it, or choose another",
            code="data.unwritable",
        )
    if not os.access(path.parent, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise DataError(
            f"cannot write {path}: the folder {path.parent} may not be written to",
            remedy="choose another",
            code="data.unwritable",
        )


def write_output(path: Path, data: bytes) -> None:
    """Write a file, or replace an older one. Raises DataError for a link or a failure, and keeps `path` then."""
    with refused(path):
        check_kind(path, "a file")
        replace_file(path, data)


def write_output_json(path: Path, data: Any) -> None:
    """`write_output` of strict JSON. Raises ValueError for a number that is not finite."""
    write_output(path, json.dumps(data, indent=1, allow_nan=False).encode() + b"\n")


def write_output_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Make a folder with these files, all or none. Raises DataError if it exists, or if a file cannot be written."""
    with new_folder(path) as draft:
        for name, data in files.items():
            replace_file(draft / name, data)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill in a block. It is renamed to `path` at the end, and removed where the block raises.

    Raises DataError where `path` exists, and in the place of an OSError of the block.
    """
    if os.path.lexists(path):
        raise DataError(f"{path} already exists", remedy="choose another folder, or remove it", code="data.exists")
    draft = path.with_name(f".{path.name}.unfinished")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        with refused(path):
            draft.mkdir(parents=True)
            yield draft
            draft.rename(path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextlib.contextmanager
def refused(path: Path) -> Iterator[None]:
    """An OSError inside becomes a DataError with the path, the reason and a remedy."""
    try:
        yield
    except OSError as error:
        why = str(error) if isinstance(error, InTheWay) else error.strerror or str(error)
        raise DataError(f"cannot write {path}: {why}", remedy=_remedy(error), code="data.unwritable") from error


def _remedy(error: OSError) -> str:
    if isinstance(error, InTheWay):
        return "choose another file to write, or remove it"
    return "make room, or choose another place" if error.errno in _FULL else "choose another place"
