"""What a display is drawn on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from rich.console import Console


class _Console(Console):
    """One whose reader may leave: rich would end the process then."""

    def on_broken_pipe(self) -> None:
        raise


def console_on(file: IO[str] | None = None) -> Console:
    """A console on standard output, or on a file. What is no terminal gets no escape sequence, whatever FORCE_COLOR
    says, by which others choose colors.
    """
    file = file or sys.stdout
    return _Console(file=file, force_terminal=None if file.isatty() else False)


def is_screen(console: Console) -> bool:
    """Whether what was written can be drawn anew; elsewhere there are lines."""
    return console.is_terminal and not console.is_dumb_terminal


@contextmanager
def own_output() -> Iterator[IO[str]]:
    """Standard output for one writer alone: what anything else of this process, or a process that it starts, writes
    there while this lasts goes to standard error.
    """
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as own:
        try:
            os.dup2(2, 1)
            yield own
        finally:
            sys.stdout.flush()
            os.dup2(own.fileno(), 1)


def silence(file: IO[str]) -> None:
    """Have what is still written to a stream go nowhere: its reader is gone, and Python flushes it when it ends."""
    with suppress(OSError, ValueError):  # a stream in memory has no descriptor
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, file.fileno())
        os.close(descriptor)
