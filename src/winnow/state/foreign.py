"""Runs of other trainers, read as winnow's own records: what every log becomes, and `open_log`, which finds its reader.

The readers of this room (`read_metrics`, `files_in`, `StepFile`, `read_rows`, `describe`) call `open_log` first. So
commands read these runs as well, without code for any trainer. An installed package adds a reader, a `ForeignLog`, by
an entry point of the group "winnow.logs". A step has the number of updates before it, as in winnow: the first one is
step 0, which other trainers call 1.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

from winnow.errors import INTERRUPTIONS, DataError
from winnow.installed import LOGS, entry_points, package_of, registering
from winnow.state.foreign_log import ForeignGroup, ForeignLog
from winnow.state.manifest import MANIFEST
from winnow.state.unknown_folder import is_run, refuse_settings, unknown

__all__ = ["ForeignGroup", "ForeignLog", "file_of", "no_run", "open_log"]


def open_log(path: Path) -> ForeignLog | None:
    """The log in a folder of another trainer; None for every other path. Reads names, and at most the settings.

    Raises ConfigError for unusable settings, and DataError for a file of settings in place of a run.
    """
    refuse_settings(path)
    if not path.is_dir() or (path / MANIFEST).exists():
        return None
    kind = next((kind for kind in readers()[0] if kind.is_at(path)), None)
    return None if kind is None else kind(path)


def no_run(path: Path) -> DataError:
    """The error about a folder that is no run: what is there, the formats that are read, and readers that failed."""
    if not os.path.lexists(path):
        return DataError(
            f"there is no folder {path}",
            remedy="correct the path" if path.is_absolute() else f"correct the path, which starts from {Path.cwd()}",
            code="data.missing",
        )
    kinds, lost = readers()
    error = unknown(path, kinds, lambda inner: is_run(inner, kinds))
    for note in lost:
        error.add_note(note)
    return error


def file_of(path: Path) -> tuple[ForeignLog, int] | None:
    """The log that a file of rollouts is in, and its step; None for a file that no other trainer names so."""
    whole = Path(os.path.abspath(path))  # from inside its folder, a file's name alone does not show it
    for kind in readers()[0]:
        step = kind.step_of(whole)
        if step is not None and (log := open_log(whole.parents[kind.above])) is not None:
            return log, step
    return None


@functools.cache
def readers() -> tuple[tuple[type[ForeignLog], ...], tuple[str, ...]]:
    """The readers of installed packages, winnow's own first, and a note for each that cannot be used."""
    found, lost = [], []
    for point in entry_points(LOGS):
        try:
            found.append(_complete(point.load()))
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            why = f"{type(error).__name__}: {error}"
            lost.append(f"the reader of logs {point.name!r} of {package_of(point)} cannot be used: {why}")
    if missing := registering():
        lost.append(f"the readers of other trainers' logs are not installed here: {missing}")
    return tuple(found), tuple(lost)


def _complete(kind: object) -> type[ForeignLog]:
    """A reader that has everything that an abstract method or an attribute without a value of `ForeignLog` requires."""
    if not (isinstance(kind, type) and issubclass(kind, ForeignLog)):
        raise TypeError("it is no subclass of winnow.state.foreign.ForeignLog")
    texts = [name for name in ("program", "names") if not isinstance(getattr(kind, name, None), str)]
    if missing := [*sorted(kind.__abstractmethods__), *texts]:
        raise TypeError(f"{kind.__name__} lacks {', '.join(missing)}")
    return kind
