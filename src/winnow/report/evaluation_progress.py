"""How far an evaluation has come: a live line in a terminal, a line per part of the problems anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from winnow.report.screen import console_on, is_screen
from winnow.report.text import compact, duration, one_line

EVERY = 0.2  # seconds between two pictures
QUIET = 10.0  # seconds without a line, where there is no picture


class EvaluationProgress:
    """Counts rollouts; silent where it was made without a console."""

    def __init__(self, console: Console | None, live: Live | None, clock: Callable[[], float]) -> None:
        self._console, self._live, self._clock = console, live, clock
        self._total = self._done = self._skipped = self._tokens = 0
        self._began = self._drawn = clock()
        self._task = ""

    def loading(self, model: str) -> None:
        """The model is about to be loaded."""
        self._say(f"loading {model}")

    def begin(self, rollouts: int) -> None:
        """So many are to be sampled, those that a resume finds done included."""
        self._total = rollouts

    def resumed(self, task: str, rollouts: int) -> None:
        """So many were done before."""
        self._done, self._skipped = self._done + rollouts, self._skipped + rollouts
        if rollouts:
            self._say(f"{task}: {rollouts:,} rollouts were done before")

    def asking(self, task: str) -> None:
        """What is sampled from now on: the model is loaded."""
        self._began = self._clock() if not self._task else self._began
        self._task = task

    def rollout(self, tokens: int) -> None:
        """One more is finished."""
        self._done, self._tokens = self._done + 1, self._tokens + tokens
        now = self._clock()
        if now - self._drawn <= (EVERY if self._live is not None else QUIET):
            return
        self._drawn = now
        if self._live is not None:
            self._live.update(Text(self.line(), no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            self._say(self.line())

    def part(self, problems: int, of: int) -> None:
        """So many problems of the task are done."""
        if self._live is None:
            self._drawn = self._clock()
            self._say(f"{problems:,} of {of:,} problems; {self.line()}")

    def line(self) -> str:
        """The state in a line."""
        seconds, sampled = self._clock() - self._began, self._done - self._skipped
        pace = f"  {compact(self._tokens / seconds)} tok/s" if seconds > 0 and self._tokens else ""
        left = seconds / sampled * (self._total - self._done) if sampled else None
        ends = "" if left is None else f"  {duration(left)} left"
        return one_line(f"{self._task}  {self._done:,}/{self._total:,} rollouts{pace}{ends}")

    def _say(self, text: str) -> None:
        if self._console is not None:
            self._console.print(one_line(text), markup=False, highlight=False, emoji=False, soft_wrap=True)


@contextmanager
def evaluation_progress(
    console: Console | None = None, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[EvaluationProgress]:
    """Show how far an evaluation has come while the block lasts; on standard error, so that numbers stay apart."""
    console = console or console_on(sys.stderr)
    if not is_screen(console):
        yield EvaluationProgress(console, None, clock)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:  # no thread: workers are forked from here
        yield EvaluationProgress(console, live, clock)


def silent() -> EvaluationProgress:
    """For a call from Python."""
    return EvaluationProgress(None, None, time.monotonic)
