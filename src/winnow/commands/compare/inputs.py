"""The inputs that a user names: run folders, sweeps, folders of runs, CSV files, each with an optional label."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from winnow.errors import DataError
from winnow.state.checkpoint_names import is_checkpoint_path
from winnow.state.logbook import METRICS
from winnow.state.manifest import MANIFEST
from winnow.state.sweep_folder import SWEEP, SweepRun, read_contents, read_sweep, sweep_of


@dataclass(frozen=True)
class NamedRun:
    """A run folder that is compared."""

    path: Path
    label: str | None = None  # the user's or the sweep's; None: the label comes from its configuration
    alone: bool = True  # it ran alone on its machine; true where that is not known
    begun: bool = True
    of_sweep: bool = False


@dataclass(frozen=True)
class NamedFile:
    """A CSV file of curves."""

    path: Path
    label: str | None = None  # of its curves, if the file has no column of groups


@dataclass(frozen=True)
class NamedInputs:
    """Everything that is compared, in the user's order."""

    inputs: tuple[NamedRun | NamedFile, ...]
    baseline: str | None  # the baseline of the sweeps, if they have the same


def named_inputs(arguments: Sequence[str]) -> NamedInputs:
    """The inputs that `PATH` and `LABEL=PATH` name; a PATH may be a pattern with * that matches several.

    Raises DataError for a path that is no such input, and for one that is named twice.
    """
    named = [item for argument in arguments for item in _inputs(argument)]
    seen: dict[str, Path] = {}
    for item in named:
        place = os.path.realpath(item.path)
        if place in seen:
            raise DataError(
                f"{item.path} is named twice (first as {seen[place]})", remedy="name it once", code="data.mismatch"
            )
        seen[place] = item.path
    sweeps = {item.path.parent.parent for item in named if isinstance(item, NamedRun) and item.of_sweep}
    baselines = {read_contents(folder).baseline for folder in sweeps} - {None}
    return NamedInputs(tuple(named), baselines.pop() if len(baselines) == 1 else None)


def _inputs(argument: str) -> Iterator[NamedRun | NamedFile]:
    label, text = _split(argument)
    path = Path(text).expanduser()
    if os.path.lexists(path):
        yield from _at(path, label)
        return
    matching = [Path(match) for match in sorted(glob.glob(str(path)))]
    if not matching:
        raise DataError(
            f"there is no {path}",
            remedy="name run folders, folders of runs, sweeps or CSV files of curves, each as PATH or LABEL=PATH",
            code="data.missing",
        )
    for match in matching:
        yield from _at(match, label)


def _split(argument: str) -> tuple[str | None, str]:
    """(label, path). An argument has no label if it exists as a path, or if a "/" precedes its first "="."""
    label, equals, path = argument.partition("=")
    if not equals or not label or "/" in label or os.path.lexists(argument):
        return None, argument
    return label, path


def _at(path: Path, label: str | None) -> Iterator[NamedRun | NamedFile]:
    if not path.is_dir():
        yield NamedFile(path, label)
    elif (path / SWEEP).is_file():
        if label is not None:
            raise DataError(
                f"{label}={path}: a sweep has its labels already",
                remedy="name it without one",
                code="data.mismatch",
            )
        yield from map(_of_sweep, read_sweep(path))
    elif _is_run(path):
        yield _run(path, label)
    else:
        runs = sorted((inner for inner in path.iterdir() if _is_run(inner)), key=_by_number)
        if not runs:
            raise DataError(
                f"{path} is no run folder, and contains none",
                remedy="name run folders, sweeps or CSV files of curves",
                code="data.missing",
            )
        yield from (_run(inner, label) for inner in runs)


def _is_run(path: Path) -> bool:
    """Whether a folder is a run, and not a checkpoint, which has a manifest too."""
    return ((path / MANIFEST).is_file() or (path / METRICS).is_file()) and not is_checkpoint_path(path)


def _by_number(path: Path) -> tuple[str, int, str]:
    """A sort key by which seed-2 precedes seed-10."""
    digits = path.name[len(path.name.rstrip("0123456789")) :]
    return path.name.removesuffix(digits), int(digits or 0), path.name


def _run(path: Path, label: str | None) -> NamedRun:
    """A named run. For a run of a sweep, the sweep's files have whether it ran alone, and its label unless the user
    gave one.
    """
    sweep = sweep_of(path)
    if sweep is None:
        return NamedRun(path, label)
    inside = os.path.abspath(path)
    known = next(_of_sweep(run) for run in read_sweep(sweep) if os.path.abspath(run.path) == inside)
    return known if label is None else replace(known, label=label)


def _of_sweep(run: SweepRun) -> NamedRun:
    return NamedRun(run.path, run.label, run.alone, begun=_is_run(run.path), of_sweep=True)
