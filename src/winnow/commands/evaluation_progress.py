"""Progress of an evaluation: a live line in a terminal, elsewhere a line per part of the problems."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from winnow.view.screen import console_on, is_screen
from winnow.view.text import format_count, format_duration, one_line

EVERY = 0.2  # seconds between two updates of the live line
QUIET = 10.0  # seconds without a line, after which one is printed; without a live line


class EvaluationProgress:
    """Counts rollouts and prints the progress; prints nothing without a console."""

    def __init__(self, console: Console | None, live: Live | None, clock: Callable[[], float]) -> None:
        self._console, self._live, self._clock = console, live, clock
        self._total = self._done = self._skipped = self._tokens = 0
        self._began = self._drawn = clock()
        self._task = ""

    def loading(self, model: str) -> None:
        """Announce that the model is about to be loaded."""
        self._print(f"loading {model}")

    def begin(self, rollouts: int) -> None:
        """Set the total number of rollouts, including those that an interrupted evaluation already has."""
        self._total = rollouts

    def resumed(self, task: str, rollouts: int) -> None:
        """Count and print rollouts of a task that an interrupted evaluation already has."""
        self._done, self._skipped = self._done + rollouts, self._skipped + rollouts
        if rollouts:
            self._print(f"{task}: {rollouts:,} rollouts were done before")

    def start_task(self, task: str) -> None:
        """Set the task that is sampled from now on. The clock starts at the first call, after the model is loaded."""
        self._began = self._clock() if not self._task else self._began
        self._task = task

    def rollout(self, tokens: int) -> None:
        """Count one finished rollout, and show the progress if the last update is old enough."""
        self._done, self._tokens = self._done + 1, self._tokens + tokens
        now = self._clock()
        if now - self._drawn <= (EVERY if self._live is not None else QUIET):
            return
        self._drawn = now
        if self._live is not None:
            self._live.update(Text(self.line(), no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            self._print(self.line())

    def part(self, problems: int, of: int) -> None:
        """Print how many problems of the task are done, unless there is a live line."""
        if self._live is None:
            self._drawn = self._clock()
            self._print(f"{problems:,} of {of:,} problems; {self.line()}")

    def line(self) -> str:
        """The progress in one line: the task, rollouts, tokens per second and the time that is left."""
        seconds, sampled = self._clock() - self._began, self._done - self._skipped
        pace = f"  {format_count(self._tokens / seconds)} tok/s" if seconds > 0 and self._tokens else ""
        left = seconds / sampled * (self._total - self._done) if sampled else None
        ends = "" if left is None else f"  {format_duration(left)} left"
        return one_line(f"{self._task}  {self._done:,}/{self._total:,} rollouts{pace}{ends}")

    def _print(self, text: str) -> None:
        if self._console is not None:
            self._console.print(one_line(text), markup=False, highlight=False, emoji=False, soft_wrap=True)


@contextmanager
def evaluation_progress(
    console: Console | None = None, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[EvaluationProgress]:
    """Show the progress of an evaluation during the block, by default on standard error: standard output has only the
    results.
    """
    console = console or console_on(sys.stderr)
    if not is_screen(console):
        yield EvaluationProgress(console, None, clock)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:  # no thread: workers are forked from here
        yield EvaluationProgress(console, live, clock)


def silent() -> EvaluationProgress:
    """Progress that prints nothing, for calls from Python."""
    return EvaluationProgress(None, None, time.monotonic)
