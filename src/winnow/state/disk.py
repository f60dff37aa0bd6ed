"""Writes files that are whole or absent, even after SIGKILL, and never writes to links, pipes or devices."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class InTheWay(OSError):
    """Something else is in the place of a file or a folder of a run."""

    def __str__(self) -> str:
        return str(self.strerror)


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
    replace_file(path, json.dumps(data, indent=indent, allow_nan=False).encode() + b"\n")


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
