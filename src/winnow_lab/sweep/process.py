"""The processes that a sweep starts: a training run with its log and its exit, and the comparison at the end.

A comparison is due where its input has another digest than at the last one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import typer

from winnow.commands.command_line import FAILED, print_text
from winnow.errors import RunFolderError
from winnow.installed import is_installed
from winnow.state.disk import errors_as, write_json
from winnow.state.folder import SWEEP, has_finished_step
from winnow.state.logbook import read_metrics
from winnow.state.resume import digest
from winnow_lab.sweep import tied_child
from winnow_lab.sweep_folder import COMPARISON, LEDGER, SweepRun

Command = Callable[[SweepRun], list[str]]  # returns the arguments of Python
MADE_FROM = "made_from.json"  # written last: a comparison without it was interrupted


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


def comparison_due(folder: Path) -> Path | None:
    """Return a new folder for the comparison of a sweep; None if an up-to-date comparison exists.

    An empty folder, which an interrupted comparison may leave, is removed.
    """
    for number in itertools.count(1):
        path = folder / (COMPARISON if number == 1 else f"{COMPARISON}-{number}")
        with contextlib.suppress(OSError):
            path.rmdir()
        if not os.path.lexists(path):
            return path
        if _read_digests(path) == _input_digests(folder):
            return None
    raise AssertionError("unreachable")


def compare(folder: Path, output: Path | None) -> None:
    """Print how to compare the runs, or with `output` compare them into a folder of tables and pictures."""
    command = ["winnow", "compare", str(folder)]
    if output is None:
        print_text(f"finished; compare them: {shlex.join(command)}")
        return
    without = [] if is_installed("matplotlib") else ["--no-plot"]
    done = subprocess.run([sys.executable, "-m", *command, "--output", str(output), *without], check=False)
    if done.returncode:
        raise typer.Exit(FAILED)
    mark_comparison(output, folder)
    if without:
        print_text("note: there is no picture without matplotlib: pip install 'winnow-rl[plot]', then winnow compare")


def mark_comparison(comparison: Path, folder: Path) -> None:
    """Mark a comparison as complete, with the digests of its input. Raises RunFolderError."""
    path = comparison / MADE_FROM
    with errors_as(RunFolderError, f"cannot write {path}", "make room", code="run_folder.unwritable"):
        write_json(path, _input_digests(folder))


def any_evaluated(runs: Iterable[SweepRun]) -> bool:
    """Return whether any of the runs has an evaluation. Raises DataError for metrics that cannot be read."""
    rows = itertools.chain.from_iterable(read_metrics(run.path) for run in runs)
    return any(not math.isnan(row.get("eval/accuracy_sampled", math.nan)) for row in rows)


def _input_digests(folder: Path) -> dict[str, str]:
    """Digests of the labels and of the ledger; every further launch changes the ledger."""
    return {name: digest(folder / name) for name in (SWEEP, LEDGER)}


def _read_digests(comparison: Path) -> Any:
    try:
        return json.loads((comparison / MADE_FROM).read_bytes())
    except (OSError, ValueError):
        return None
