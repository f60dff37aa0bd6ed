"""A training run as a child process: its command, its log, its exit."""

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
from winnow.state.run_folder import has_finished_step
from winnow.state.sweep_folder import SweepRun

Command = Callable[[SweepRun], list[str]]  # returns the arguments of Python


@dataclass(frozen=True)
class ProcessEnd:
    """How a launch of a run ended."""

    code: int | None  # the exit code; None if it is unknown
    problem: str | None = None  # why the run was not started, or its exit code is unknown
    cancelled: bool = False  # whether it was cancelled before its start


class Launched(Protocol):
    """A run in progress."""

    def poll(self) -> ProcessEnd | None:
        """How it ended; None while it runs."""

    def stop(self) -> None:
        """Request that it save and exit, which takes some time. A second request makes it exit at once."""


class Launcher(Protocol):
    """Starts runs, on this machine or elsewhere."""

    at_once: int | None  # maximum number of concurrent runs; None: the launcher queues them
    alone: bool  # whether a run is the only one on this machine, so that its seconds count
    verb: str  # printed when a run starts: "began" or "submitted"

    def start(self, run: SweepRun, arguments: Sequence[str]) -> Launched:
        """Start a run with these arguments of Python. Raises OSError if that fails."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Release resources; no run is in progress."""
        return None


def train_command(run: SweepRun) -> list[str]:
    """`winnow train` with a run's settings, seed and folder; a run with a completed step is resumed."""
    resume = ["--resume"] if has_finished_step(run.path) else []
    return ["-m", "winnow", "train", str(run.settings), "--set", f"seed={run.seed}", "--output", str(run.path), *resume]


class OnThisMachine(Launcher):
    """Runs as children of this process."""

    def __init__(self, at_once: int) -> None:
        self.at_once: int | None = at_once
        self.alone, self.verb = at_once == 1, "began"

    def start(self, run: SweepRun, arguments: Sequence[str]) -> Launched:
        return Child(arguments, run.log)


class Child:
    """A Python process that writes to a log. On Linux it receives SIGTERM when its parent exits (see tied_child.py).

    Raises OSError if the log cannot be written or the process cannot be started.
    """

    def __init__(self, arguments: Sequence[str], log: Path, cwd: str | None = None) -> None:
        tied = [sys.executable, tied_child.__file__, str(os.getpid()), sys.executable, *arguments]
        with log.open("ab") as output:
            # A separate session: Ctrl-C in a terminal signals only the sweep, which signals each run once.
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
        """How it ended; None if it still runs after `seconds`."""
        until = time.monotonic() + seconds
        while (ended := self.poll()) is None and time.monotonic() < until:
            time.sleep(0.05)
        return ended
