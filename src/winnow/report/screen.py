"""What a display is drawn on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import IO, Any, Literal, cast

from rich.console import Console

from winnow.report.text import encodable

Progress = Literal["auto", "plain", "json", "none"]  # how a run is shown


class _Console(Console):
    """One whose reader may leave: rich would end the process then."""

    def on_broken_pipe(self) -> None:
        raise


class _Encodable:
    """A stream whose encoding may lack characters: these are written as escapes."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        encoding = getattr(self._file, "encoding", None) or "utf-8"
        return self._file.write(encodable(text, encoding))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def console_on(file: IO[str] | None = None) -> Console:
    """A console on standard output, or on a file, of any encoding. What is no terminal gets no escape sequence,
    whatever FORCE_COLOR says, by which others choose colors.
    """
    file = file or sys.stdout
    terminal = None if _may_be_terminal(file) else False  # None: as the environment says
    return _Console(file=file and cast(IO[str], _Encodable(file)), force_terminal=terminal)  # None: it was closed


def _may_be_terminal(file: IO[str]) -> bool:
    try:
        return file.isatty()
    except (AttributeError, ValueError):  # a program's own standard output may have none, or be closed
        return False


def escape_unprintable() -> None:
    """From now on this process writes what its output has no character for as an escape: for a process that is
    winnow's own, never for one that imports it.
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None where the shell closed it
        stream.reconfigure(errors="backslashreplace")


def is_screen(console: Console) -> bool:
    """Whether what was written can be drawn anew; elsewhere there are lines."""
    return console.is_terminal and not console.is_dumb_terminal


@contextmanager
def own_output() -> Iterator[IO[str]]:
    """Standard output for one writer alone: what anything else of this process, or a process that it starts, writes
    there while this lasts goes to standard error. Where standard output is an object of the program (a notebook's),
    what is printed in Python goes there.
    """
    if not _is_descriptor_1(sys.stdout):
        own = sys.stdout
        with redirect_stdout(sys.stderr):
            yield own
        return
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as own:
        try:
            os.dup2(2, 1)
            yield own
        finally:
            sys.stdout.flush()
            os.dup2(own.fileno(), 1)


def _is_descriptor_1(file: IO[str]) -> bool:
    try:
        return file.fileno() == 1
    except (AttributeError, OSError, ValueError):  # no stream of the system, or a closed one
        return False


def silence(file: IO[str]) -> None:
    """Have what is still written to a stream go nowhere: its reader is gone, and Python flushes it when it ends."""
    with suppress(OSError, ValueError):  # a stream in memory has no descriptor
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, file.fileno())
        os.close(descriptor)
