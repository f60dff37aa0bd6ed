"""A training run as a child process: its command, its log, its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from winnow.commands.sweep import tied_child
from winnow.state.run_folder import begun
from winnow.state.sweep_folder import SweepRun

Command = Callable[[SweepRun], list[str]]  # the arguments of Python


@dataclass(frozen=True)
class ProcessEnd:
    """How a launch of a run ended."""

    code: int | None  # None where its end was not seen
    problem: str | None = None  # what kept it from being launched, or from being seen to its end
    cancelled: bool = False  # before it was launched


class Launched(Protocol):
    """A run under way."""

    def poll(self) -> ProcessEnd | None:
        """How it ended; None while it goes on."""

    def stop(self) -> None:
        """Ask it to save and end; it ends some time later. Asked again, it ends at once."""


class Launcher(Protocol):
    """Where runs are launched."""

    at_once: int | None  # runs side by side; None: it decides itself
    alone: bool  # whether a run has this machine to itself, so that its seconds count
    begins: str  # what `start` does to a run, for a person

    def start(self, run: SweepRun, arguments: Sequence[str]) -> Launched:
        """Launch a run by these arguments of Python. Raises OSError where that cannot be done."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Release what is held; no run is under way."""
        return None


def train_command(run: SweepRun) -> list[str]:
    """`winnow train` with a run's settings, seed and folder; a run of which a step is done is resumed."""
    resume = ["--resume"] if begun(run.path) else []
    said = ["--set", f"seed={run.seed}", "--output", str(run.path), *resume]
    return ["-m", "winnow", "train", str(run.settings), *said]


class OnThisMachine(Launcher):
    """Runs as children of this process."""

    def __init__(self, at_once: int) -> None:
        self.at_once: int | None = at_once
        self.alone, self.begins = at_once == 1, "began"

    def start(self, run: SweepRun, arguments: Sequence[str]) -> Launched:
        return Child(arguments, run.log)


class Child:
    """A Python process that ends with the one that made it (see tied_child.py), and writes to a log.

    Raises OSError where the log cannot be written or the process cannot be made.
    """

    def __init__(self, arguments: Sequence[str], log: Path, cwd: str | None = None) -> None:
        tied = [sys.executable, tied_child.__file__, str(os.getpid()), sys.executable, *arguments]
        with log.open("ab") as output:
            # A session of its own: Ctrl-C in a terminal reaches the sweep alone, which asks each run once.
            self._process = subprocess.Popen(
                tied,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                start_new_session=True,
            )

    def poll(self) -> ProcessEnd | None:
        code = self._process.poll()
        return None if code is None else ProcessEnd(code)

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> ProcessEnd | None:
        """How it ended; None where it goes on after so many seconds."""
        until = time.monotonic() + seconds
        while (ended := self.poll()) is None and time.monotonic() < until:
            time.sleep(0.05)
        return ended
