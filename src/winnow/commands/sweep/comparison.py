"""The comparison at the end of a sweep: whether one is due, its folder, and a digest of its input."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from winnow.commands.command_line import FAILED, print_text
from winnow.errors import RunFolderError
from winnow.installed import is_installed
from winnow.state.disk import write_json
from winnow.state.input_digests import digest
from winnow.state.logbook import read_metrics
from winnow.state.sweep_folder import COMPARISON, LEDGER, SWEEP, SweepRun

MADE_FROM = "made_from.json"  # written last: a comparison without it was interrupted


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
        print_text(f"finished; compare them: {' '.join(command)}")
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
    try:
        write_json(comparison / MADE_FROM, _input_digests(folder))
    except OSError as error:
        raise RunFolderError(
            f"cannot write {comparison / MADE_FROM}: {error.strerror}",
            remedy="make room",
            code="run_folder.unwritable",
        ) from error


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
