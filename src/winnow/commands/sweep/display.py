"""The display of a sweep: one line per change, and in a terminal a status line that is updated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from winnow.view.screen import console_on, is_screen
from winnow.view.text import format_duration, sanitize


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


def format_status(over: int, runs: int, running: Sequence[str], seconds_left: float | None) -> str:
    """ "2/6 runs  grpo/seed-2 14/40  about 3:20 left"; `running` contains the progress of each run."""
    left = [] if seconds_left is None else [f"about {format_duration(seconds_left)} left"]
    return "  ".join([f"{over}/{runs} runs", *running, *left])
