"""The files and folders that a command writes for a person: whole or absent, whatever the disk refuses.

A file is prepared under another name, synced and renamed; a folder is renamed once all that belongs in it is there.
What cannot be written is a DataError, and a second attempt finds nothing in its way. This module imports no torch.
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
    """Refuse, before any work is done, to overwrite, and to write where nothing can be written. Raises DataError."""
    for place, path in enumerate(outputs):
        if path in outputs[:place]:
            raise DataError(
                f"two outputs would be written to {path}", remedy="name different files", code="data.exists"
            )
        if os.path.lexists(path):  # a link to nothing would be written through
            raise DataError(
                f"{path} already exists", remedy="choose another file to write, or remove it", code="data.exists"
            )
        check_parent(path)


def check_parent(path: Path) -> None:
    """Raise DataError unless there is a folder for `path`, in which this process may write."""
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
    """Write a file, in the place of an older one. A link is not written through. Raises DataError; `path` is then as
    it was.
    """
    with refused(path):
        check_kind(path, "a file")
        replace_file(path, data)


def write_output_json(path: Path, data: Any) -> None:
    """`write_output` of strict JSON. Raises ValueError for a number that is not finite."""
    write_output(path, json.dumps(data, indent=1, allow_nan=False).encode() + b"\n")


def write_output_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Make a folder of these files, which are all there or none. Raises DataError; there is then no such folder."""
    with new_folder(path) as draft:
        for name, data in files.items():
            replace_file(draft / name, data)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which is called `path` once the block has ended well; of one that fails nothing is left.

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
    """An OSError inside becomes a DataError that names what was to be written, why it was not, and a remedy."""
    try:
        yield
    except OSError as error:
        why = str(error) if isinstance(error, InTheWay) else error.strerror or str(error)
        raise DataError(f"cannot write {path}: {why}", remedy=_remedy(error), code="data.unwritable") from error


def _remedy(error: OSError) -> str:
    if isinstance(error, InTheWay):
        return "choose another file to write, or remove it"
    return "make room, or choose another place" if error.errno in _FULL else "choose another place"
