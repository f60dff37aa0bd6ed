"""The comparison that a sweep ends with: whether one is due, where it belongs, and what it was made from."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from winnow.errors import RunFolderError
from winnow.state.disk import write_json
from winnow.state.input_digests import digest
from winnow.state.logbook import read_metrics
from winnow.state.sweep_folder import COMPARISON, LEDGER, SWEEP, SweepRun

MADE_FROM = "made_from.json"  # the last file of a comparison: where it lacks, something ended `winnow compare` before


def comparison_due(folder: Path) -> Path | None:
    """A new folder for the comparison of a sweep; None where one is there that was made from all that the sweep has.

    An empty folder, left by a comparison that was killed, is removed.
    """
    for number in itertools.count(1):
        path = folder / (COMPARISON if number == 1 else f"{COMPARISON}-{number}")
        with contextlib.suppress(OSError):
            path.rmdir()
        if not os.path.lexists(path):
            return path
        if _said(path) == _made_from(folder):
            return None
    raise AssertionError("unreachable")


def mark_comparison(comparison: Path, folder: Path) -> None:
    """Write down that a comparison is whole, and what it was made from. Raises RunFolderError."""
    try:
        write_json(comparison / MADE_FROM, _made_from(folder))
    except OSError as error:
        raise RunFolderError(
            f"cannot write {comparison / MADE_FROM}: {error.strerror}",
            remedy="make room",
            code="run_folder.unwritable",
        ) from error


def any_evaluated(runs: Iterable[SweepRun]) -> bool:
    """Whether any of the runs has an evaluation. Raises DataError for metrics that cannot be read."""
    rows = itertools.chain.from_iterable(read_metrics(run.path) for run in runs)
    return any(not math.isnan(row.get("eval/accuracy_sampled", math.nan)) for row in rows)


def _made_from(folder: Path) -> dict[str, str]:
    """The launches and the labels that a comparison is of; every further launch changes the ledger."""
    return {name: digest(folder / name) for name in (SWEEP, LEDGER)}


def _said(comparison: Path) -> Any:
    try:
        return json.loads((comparison / MADE_FROM).read_bytes())
    except (OSError, ValueError):
        return None
