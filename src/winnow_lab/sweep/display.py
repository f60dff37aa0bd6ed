"""The display of a sweep, and the progress of its runs, read from their metrics while they are written."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from winnow.metrics import is_step
from winnow.state.log import METRICS
from winnow.view.screen import console_on, is_screen
from winnow.view.text import one_line, sanitize, shorten

_LOG_END = 8192  # bytes
_LAST_LINES = 3


class RunProgress:
    """Follows a run's metrics.jsonl, and reads only new rows."""

    def __init__(self, run: Path) -> None:
        self.done = 0  # steps
        self.hours = 0.0  # of training, if the run measures them
        self.evaluation: dict[str, float] = {}  # the row of the last one
        self._path = run / METRICS
        self._read = 0  # bytes

    def update(self) -> int:
        """Read new rows. Returns the number of completed steps."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._read:  # a resume truncated it
                self.done, self.hours, self._read = 0, 0.0, 0
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                # A malformed row only delays the display; commands that need the metrics report it
                with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError):
                    self._take(json.loads(line))
        return self.done

    def _take(self, row: dict[str, float]) -> None:
        if is_step(row):
            self.done, self.hours = int(row["step"]) + 1, float(row.get("time/training_hours") or 0.0)
        if "eval/seconds" in row:
            self.evaluation = {name: float("nan") if value is None else value for name, value in row.items()}


def last_lines(log: Path, start: int = 0) -> list[str]:
    """The last lines of a log after byte `start` that are not empty, with control characters escaped.

    There are several because an error's cause may precede its last line.
    """
    try:
        with log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start, end - _LOG_END))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError as error:
        return [f"it cannot be read: {error.strerror}"]
    texts = [one_line(shorten(line.rstrip(), 300)) for line in lines if line.strip()]
    return texts[-_LAST_LINES:] or ["nothing"]


class SweepDisplay:
    """Prints lines, and shows the status of the sweep."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console = console
        self._live = live
        self._shown = ""

    def print_line(self, text: str) -> None:
        """Print a permanent line. Control characters and markup in it are escaped, never interpreted."""
        self._console.print(sanitize(text), markup=False, highlight=False, emoji=False, soft_wrap=True)

    def show_status(self, line: str) -> None:
        """Update the status line of a terminal; without a terminal this does nothing."""
        if self._live is not None and line != self._shown:
            self._shown = line
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)


@contextmanager
def sweep_display(console: Console | None = None) -> Iterator[SweepDisplay]:
    """The display, for the duration of the block."""
    console = console or console_on()
    if not is_screen(console):
        yield SweepDisplay(console, None)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield SweepDisplay(console, live)
