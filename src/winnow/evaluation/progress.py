"""The progress of an evaluation: its rollouts, counted and displayed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from winnow.view.screen import silence
from winnow.view.text import format_count, format_duration, one_line

EVERY = 0.2  # seconds between two updates of the live line
QUIET = 10.0  # seconds without a line, after which one is printed; without a live line


class EvaluationProgress:
    """Counts rollouts, and prints the progress on a console; nothing without one."""

    def __init__(
        self, console: Console | None = None, live: Live | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._live, self._clock = console or Console(quiet=True), live, clock
        self._total = self._done = self._skipped = self._tokens = 0
        self._began = self._drawn = clock()
        self._task = ""

    def begin(self, rollouts: int) -> None:
        """Set the total number of rollouts, including those that an interrupted evaluation already has."""
        self._total = rollouts

    def resumed(self, task: str, rollouts: int) -> None:
        """Count the rollouts of a task that an interrupted evaluation already has."""
        self._done, self._skipped = self._done + rollouts, self._skipped + rollouts
        if rollouts:
            self._print(f"{task}: {rollouts:,} rollouts were done before")

    def loading(self, model: str) -> None:
        self._print(f"loading {model}")

    def start_task(self, task: str) -> None:
        """Set the task that is sampled from now on. The clock starts at the first call, after the model is loaded."""
        self._began = self._clock() if not self._task else self._began
        self._task = task

    def rollout(self, tokens: int) -> None:
        """Count a finished rollout with this number of tokens."""
        self._done, self._tokens = self._done + 1, self._tokens + tokens
        now = self._clock()
        if now - self._drawn <= (EVERY if self._live is not None else QUIET):
            return
        self._drawn = now
        if self._live is not None:
            self._show(self._live.update, Text(self.line(), no_wrap=True, overflow="ellipsis"), refresh=True)
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
        self._show(self._console.print, one_line(text), markup=False, highlight=False, emoji=False, soft_wrap=True)

    def _show(self, write: Callable[..., object], *what: Any, **how: Any) -> None:
        """Write to the console. If that is not possible any more, only the display ends."""
        try:
            write(*what, **how)
        except OSError:  # the reader closed the pipe, the terminal is closed, or the disk is full
            silence(self._console.file)
