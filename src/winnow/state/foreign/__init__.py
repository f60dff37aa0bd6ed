"""Runs of other trainers, read as winnow's own records: a module for each trainer, and `open_log` for all.

The readers of this room (`read_metrics`, `files_in`, `StepFile`, `read_rows`, `describe`) call `open_log` first. So
commands read these runs as well, without code for any trainer. A step has the number of updates before it, as in
winnow: the first one is step 0, which other trainers call 1.
"""

from __future__ import annotations

from pathlib import Path

from winnow.errors import DataError
from winnow.state.foreign.log import ForeignGroup, ForeignLog
from winnow.state.foreign.openrlhf import OpenRlhfLog
from winnow.state.foreign.prime_rl import PrimeRlLog
from winnow.state.foreign.skyrl import SkyRlLog
from winnow.state.foreign.trl import TrlLog
from winnow.state.foreign.unknown import is_run, unknown
from winnow.state.foreign.verl import VerlLog
from winnow.state.manifest import MANIFEST

__all__ = ["LOGS", "ForeignGroup", "ForeignLog", "file_of", "no_run", "open_log"]

LOGS: tuple[type[ForeignLog], ...] = (TrlLog, VerlLog, PrimeRlLog, OpenRlhfLog, SkyRlLog)


def open_log(path: Path) -> ForeignLog | None:
    """The log in a folder of another trainer; None for every other path. Reads names, and at most the settings.

    Raises ConfigError for unusable settings.
    """
    if not path.is_dir() or (path / MANIFEST).exists():
        return None
    kind = next((kind for kind in LOGS if kind.is_at(path)), None)
    return None if kind is None else kind(path)


def no_run(path: Path) -> DataError:
    """The error about a folder that is no run: what was found there, and the formats that are read."""
    return unknown(path, LOGS, lambda inner: is_run(inner, LOGS))


def file_of(path: Path) -> tuple[ForeignLog, int] | None:
    """The log that a file of rollouts is in, and its step; None for a file that no other trainer names so."""
    for kind in LOGS:
        for folder in kind.folders_of(path):
            log = open_log(folder)
            step = None if log is None else kind.step_of(path)
            if log is not None and step is not None:
                return log, step
    return None
