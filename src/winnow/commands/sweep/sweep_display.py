"""What a person sees of a sweep: a line for each change, and in a terminal a last one that is kept up to date."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from winnow.report.screen import console_on, is_screen
from winnow.report.text import duration, safe


class SweepDisplay:
    """Says lines, and shows where the sweep stands."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console = console
        self._live = live
        self._shown = ""

    def say(self, text: str) -> None:
        """A line that stays. Foreign text is escaped, never interpreted."""
        self._console.print(safe(text), markup=False, highlight=False, emoji=False, soft_wrap=True)

    def stand(self, line: str) -> None:
        """Where the sweep stands, in a terminal; elsewhere nothing is shown between two changes."""
        if self._live is not None and line != self._shown:
            self._shown = line
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)


@contextmanager
def sweep_display(console: Console | None = None) -> Iterator[SweepDisplay]:
    """A display while the block lasts."""
    console = console or console_on()
    if not is_screen(console):
        yield SweepDisplay(console, None)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield SweepDisplay(console, live)


def standing(over: int, runs: int, running: Sequence[str], seconds_left: float | None) -> str:
    """ "2/6 runs  grpo/seed-2 14/40  about 3:20 left"; `running` says of each run how far it is."""
    left = [] if seconds_left is None else [f"about {duration(seconds_left)} left"]
    return "  ".join([f"{over}/{runs} runs", *running, *left])
