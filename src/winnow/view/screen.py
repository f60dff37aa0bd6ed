"""Terminals and pipes: the console of a display, encodings, standard output for one writer alone, and the logs of
libraries, which are escaped.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import IO, Any, Literal, cast

from rich.console import Console

from winnow.view.text import encodable, sanitize

Progress = Literal["auto", "plain", "json", "none"]  # how a run is shown


class _Console(Console):
    """A console whose reader may close the pipe. rich would end the process; here the caller gets the error."""

    def on_broken_pipe(self) -> None:
        raise


class _Encodable:
    """A stream that writes characters that its encoding lacks as escapes."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        encoding = getattr(self._file, "encoding", None) or "utf-8"
        return self._file.write(encodable(text, encoding))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def console_on(file: IO[str] | None = None) -> Console:
    """A console on standard output, or on a file, of any encoding. Only terminals get escape sequences, even with
    FORCE_COLOR, which rich would apply to files and pipes too.
    """
    file = file or sys.stdout
    terminal = None if _may_be_terminal(file) else False  # None: rich reads the environment
    return _Console(file=file and cast(IO[str], _Encodable(file)), force_terminal=terminal)  # no file: stdout is closed


def _may_be_terminal(file: IO[str]) -> bool:
    try:
        return file.isatty()
    except (AttributeError, ValueError):  # a program's replacement of standard output may lack isatty, or be closed
        return False


def escape_unprintable() -> None:
    """Write characters that the output's encoding lacks as escapes from now on. Only winnow's commands may call this,
    never a program that imports winnow.
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None if the shell closed it
        stream.reconfigure(errors="backslashreplace")


def is_screen(console: Console) -> bool:
    """Whether the console can redraw its output; other consoles get lines."""
    return console.is_terminal and not console.is_dumb_terminal


@contextmanager
def own_output() -> Iterator[IO[str]]:
    """Standard output for one writer alone. During the block, all other output of this process and of its children to
    standard output goes to standard error. If standard output is a Python object, as in a notebook, only prints in
    Python are redirected.
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
    except (AttributeError, OSError, ValueError):  # an object without a descriptor, or a closed stream
        return False


def silence(file: IO[str]) -> None:
    """Discard all further output to a stream whose reader is gone; Python's flush at exit would raise an error."""
    with suppress(OSError, ValueError):  # a stream in memory has no descriptor
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, file.fileno())
        os.close(descriptor)


class _Record(logging.LogRecord):
    def getMessage(self) -> str:
        return sanitize(super().getMessage())


def escape_logs() -> None:
    """Escape every log record and warning of this process from now on, whichever handler prints it. Only winnow's
    commands may call this, never a program that imports winnow.
    """
    logging.setLogRecordFactory(_Record)
    formatted = warnings.formatwarning

    def escaped(*args: Any, **more: Any) -> str:
        return sanitize(formatted(*args, **more))

    warnings.formatwarning = escaped
