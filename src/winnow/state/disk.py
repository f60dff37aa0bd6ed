"""Writes files and folders that are whole or absent, even after SIGKILL and on a full disk.

It never writes to links, pipes or devices. A file is prepared under another name, synced and renamed; a folder is
renamed once it is complete. A failed write of a command's output raises DataError and leaves nothing that would prevent
a second attempt. This module imports no torch.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from winnow.errors import DataError, WinnowError

_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
MARK_BYTES = 4096  # at the beginning of a file, in which its mark is


class InTheWay(OSError):
    """Something else is in the place of a file or a folder of a run."""


@contextmanager
def errors_as(
    error: type[WinnowError],
    problem: str,
    remedy: str,
    *,
    code: str,
    key: str | None = None,
    of: tuple[type[Exception], ...] = (OSError,),
) -> Iterator[None]:
    """An exception inside, of the types `of`, becomes this error, with the reason after the problem. `remedy` is for
    anything but `InTheWay`, whose remedy is to move away what is in the way.
    """
    try:
        yield
    except of as reason:
        why = f"{type(reason).__name__}: {reason}"
        if isinstance(reason, OSError) and reason.strerror:
            # `filename` is a number for a file that was opened by its descriptor
            named = not isinstance(reason.filename, str) or Path(reason.filename).name in problem
            why = reason.strerror if named else f"{reason.filename}: {reason.strerror}"
        remedy = f"move it away, or {remedy}" if isinstance(reason, InTheWay) else remedy
        raise error(f"{problem}: {why}", remedy=remedy, key=key, code=code) from reason


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def kind(path: Path, *, follow: bool = False) -> str | None:
    """The kind of what exists at a path, in words; None for nothing. With `follow`, a link counts as its target."""
    try:
        mode = (path.stat if follow else path.lstat)().st_mode
    except FileNotFoundError:
        return None
    return _KINDS.get(stat.S_IFMT(mode), "something else")


def check_kind(path: Path, wanted: str, *, follow: bool = False) -> None:
    """Raise InTheWay where something else than `wanted` ("a file", "a folder") exists at a path."""
    existing = kind(path, follow=follow)
    if existing not in (wanted, None):
        raise InTheWay(errno.EINVAL, f"{path.name} is {existing}, where {wanted} belongs")


def open_file(path: Path, flags: int) -> int:
    """A descriptor of a regular file. Does not follow a link or wait for a pipe.

    Raises InTheWay for anything but a file, and OSError as os.open does.
    """
    check_kind(path, "a file")
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """The descriptor of `open_file`, closed at the end."""
    descriptor = open_file(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte. A single os.write may write fewer than requested."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def write_json(path: Path, data: Any, *, indent: int | None = 1) -> None:
    """Replace `path` by `data` as strict JSON in one atomic move. Where `path` is a link, its target stays as it is.

    Raises OSError when writing fails, ValueError for a number that is not finite; `path` is then as it was.
    """
    text = compact_json(data) if indent is None else json.dumps(data, indent=indent, allow_nan=False).encode()
    replace_file(path, text + b"\n")


def compact_json(data: Any) -> bytes:
    """`data` as strict JSON in one line. Raises ValueError for a number that is not finite."""
    with suppress(orjson.JSONEncodeError):  # such as integers of more than 64 bits
        text = orjson.dumps(data, default=list)  # of a named tuple
        if b"null" not in text:  # orjson writes null for a number that is not finite
            return text
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()


def replace_file(path: Path, data: bytes) -> None:
    """`write_json`, of bytes."""
    draft = draft_of(path)
    draft.unlink(missing_ok=True)
    try:
        with opened(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
            write_all(descriptor, data)
            os.fsync(descriptor)
        draft.replace(path)
    except BaseException:
        with suppress(OSError):  # on a full disk, the next attempt needs the space of the draft
            draft.unlink()
        raise
    sync(path.parent)


def draft_of(path: Path) -> Path:
    """The path at which `replace_file` prepares a file before it moves it."""
    return path.with_name(f".{path.name}.draft")


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


def check_replaced(path: Path, mark: bytes, what: str) -> None:
    """Check an output that replaces an earlier one. Raises DataError where a file exists that is not `what`, which has
    `mark` in its first bytes, or if none can be written.
    """
    with refused(path):
        check_kind(path, "a file")
        if os.path.lexists(path):
            with path.open("rb") as file:
                own = mark in file.read(MARK_BYTES)
            if not own:
                raise DataError(
                    f"{path} already exists and is not {what}",
                    remedy="choose another file to write, or remove it",
                    code="data.exists",
                )
    check_parent(path)


def is_writable(path: Path) -> bool:
    """Whether this process, by its effective user, may write to a file or into a folder."""
    mode = os.W_OK | os.X_OK if os.path.isdir(path) else os.W_OK
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def check_parent(path: Path) -> None:
    """Raise DataError unless the folder of `path` exists and this process may write to it."""
    if not os.path.isdir(path.parent):
        raise DataError(
            f"there is no folder {path.parent} to write {path.name} into",
            remedy="make it, or choose another",
            code="data.unwritable",
        )
    if not is_writable(path.parent):
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


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill in a block. It is renamed to `path` at the end, and removed where the block raises.

    Raises DataError if `path` exists, and in the place of an OSError of the block.
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


@contextmanager
def refused(path: Path) -> Iterator[None]:
    """An OSError inside becomes a DataError with the path, the reason and a remedy."""
    with errors_as(DataError, f"cannot write {path}", "make room, or choose another place", code="data.unwritable"):
        yield
