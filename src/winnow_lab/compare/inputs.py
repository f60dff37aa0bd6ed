"""The inputs that a user names: run folders, sweeps, folders of runs, each with an optional label; and CSV files.

A CSV file contains curves of published figures, of another trainer, or of a table:

    group,seed,hours,tokens_generated,accuracy,length
    GRPO,0,0.5,120000,79.1,250

A column of shares with a value above 1 is in percent. A group without seeds is one mean curve.
"""

from __future__ import annotations

import csv
import glob
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from winnow.errors import DataError, near_miss
from winnow.records import FloatArray
from winnow.state.disk import check_kind, errors_as
from winnow.state.folder import SWEEP, is_checkpoint_path
from winnow.state.foreign import no_run, open_log
from winnow.state.logbook import is_logged
from winnow.state.manifest import MANIFEST
from winnow.state.unknown_folder import refuse_settings
from winnow.view.text import shortest_names
from winnow_lab.compare.curve import AXES, MEASURES, SHARES, Curve
from winnow_lab.sweep_folder import SweepRun, read_contents, read_sweep, run_of_sweep

CLOCKS = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}  # column -> seconds in one
COLUMNS = ("group", "seed", *CLOCKS, *AXES[1:], *MEASURES)


@dataclass(frozen=True)
class NamedRun:
    """A run folder that is compared."""

    path: Path
    label: str | None = None  # the user's or the sweep's; None: the label comes from its configuration
    alone: bool = True  # it ran alone on its machine; true where that is not known
    begun: bool = True
    of_sweep: bool = False
    foreign: bool = False  # of another trainer: without a label, the name of its folder is one


@dataclass(frozen=True)
class NamedFile:
    """A CSV file of curves."""

    path: Path
    label: str | None = None  # of its curves, if the file has no column of groups


def named_inputs(arguments: Sequence[str]) -> tuple[list[NamedRun | NamedFile], str | None]:
    """The inputs that `PATH` and `LABEL=PATH` name, in the user's order, and the baseline of the sweeps among them, if
    they have the same. A PATH may be a pattern with * that matches several.

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
    unlabelled = [item.path for item in named if isinstance(item, NamedRun) and item.foreign and item.label is None]
    names = dict(zip(unlabelled, shortest_names(unlabelled), strict=True))
    named = [replace(item, label=names[item.path]) if item.path in names else item for item in named]
    sweeps = {item.path.parent.parent for item in named if isinstance(item, NamedRun) and item.of_sweep}
    baselines = {read_contents(folder).baseline for folder in sweeps} - {None}
    return named, baselines.pop() if len(baselines) == 1 else None


def _inputs(argument: str) -> Iterator[NamedRun | NamedFile]:
    label, text = _split(argument)
    path = Path(os.path.expanduser(text))
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
    refuse_settings(path)
    if not path.is_dir():
        yield NamedFile(path, label)
    elif (path / SWEEP).is_file():
        if label is not None:
            first = next(iter(read_contents(path).labels), "LABEL")
            raise DataError(
                f"{label}={path}: a sweep has its labels already",
                remedy=f"name it without one, or give the label to one of its configurations: {label}={path / first}",
                code="data.mismatch",
            )
        yield from map(_of_sweep, read_sweep(path))
    elif _is_run(path):
        yield _run(path, label)
    else:
        runs = sorted((inner for inner in path.iterdir() if inner.is_dir() and _is_run(inner)), key=_by_number)
        if not runs:
            raise no_run(path)
        yield from (_run(inner, label) for inner in runs)


def _is_run(path: Path) -> bool:
    """Whether a folder is a run, and not a checkpoint, which has a manifest too."""
    return ((path / MANIFEST).is_file() or is_logged(path)) and not is_checkpoint_path(path)


def _by_number(path: Path) -> tuple[str, int, str]:
    """A sort key by which seed-2 precedes seed-10."""
    digits = path.name[len(path.name.rstrip("0123456789")) :]
    return path.name.removesuffix(digits), int(digits or 0), path.name


def _run(path: Path, label: str | None) -> NamedRun:
    """A named run. For a run of a sweep, the sweep's files have whether it ran alone, and its label unless the user
    gave one.
    """
    known = run_of_sweep(path)
    if known is None:
        return NamedRun(path, label, foreign=open_log(path) is not None)
    return replace(_of_sweep(known), label=label or known.label)


def _of_sweep(run: SweepRun) -> NamedRun:
    return NamedRun(run.path, run.label, run.alone, begun=_is_run(run.path), of_sweep=True)


@dataclass(frozen=True)
class _Point:
    line: int  # of the file, 1-based
    group: str | None
    seed: str | None
    numbers: Mapping[str, float]  # column -> value, NaN for an empty cell


def read_curves(path: Path) -> tuple[list[tuple[str | None, Curve]], list[str]]:
    """The curves in a CSV file in its order, each with its group (None without such a column), and notes on the file.

    Raises DataError, with the line, for a malformed file.
    """
    points = list(_points(path))
    if not points:
        raise DataError(
            f"{path}: there is no row below the header", remedy="write a row per point of a curve", code="data.empty"
        )
    scales, notes = _scales(path, points)
    of: dict[tuple[str | None, str | None], list[_Point]] = {}
    for point in points:
        of.setdefault((point.group, point.seed), []).append(point)
    _check_seeds(path, of)
    return [(group, _curve(path, group, seed, own, scales)) for (group, seed), own in of.items()], notes


def _points(path: Path) -> Iterator[_Point]:
    rows = _rows(path)
    _, header = next(rows, (1, []))
    names = [name.strip() for name in header]
    _check_header(path, names)
    for line, row in rows:
        where = f"{path}, line {line}"
        if len(row) != len(names):
            raise _malformed(
                f"{where}: {len(row)} values under {len(names)} columns", "write one value for each column"
            )
        cells = {name: cell.strip() for name, cell in zip(names, row, strict=True)}
        group, seed = cells.pop("group", None), cells.pop("seed", None)
        if group == "":
            raise _malformed(f"{where}: the group is empty", "name it, or remove the column where there is one group")
        numbers = {name: _number(cell, f"{where}, {name}") for name, cell in cells.items()}
        if math.isnan(numbers["accuracy"]):
            raise _malformed(f"{where}: the accuracy is empty, and every point of a curve has one", "remove the row")
        yield _Point(line, group, seed or None, numbers)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of every row that is not blank."""
    remedy, wrong = "name a run folder or a CSV file of curves", (UnicodeDecodeError,)
    with (
        errors_as(DataError, f"cannot read {path}", remedy, code="data.unreadable"),
        errors_as(DataError, f"{path} is not text in UTF-8", remedy, code="data.malformed", of=wrong),
    ):
        check_kind(path, "a file", follow=True)  # reading a pipe would block, and a device may never end
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            try:
                for row in reader:
                    if any(cell.strip() for cell in row):
                        yield reader.line_num, row
            except csv.Error as error:
                raise _malformed(f"{path}, line {reader.line_num}: not CSV ({error})", "repair the line") from error


def _malformed(problem: str, remedy: str) -> DataError:
    return DataError(problem, remedy=remedy, code="data.malformed")


def _check_header(path: Path, names: Sequence[str]) -> None:
    where = f"{path}, line 1"
    for place, name in enumerate(names):
        if name not in COLUMNS:
            raise _malformed(f"{where}: there is no column {name!r}", near_miss(name, COLUMNS))
        if name in names[:place]:
            raise _malformed(f"{where}: two columns are called {name!r}", "remove one")
    clocks = [name for name in names if name in CLOCKS]
    if len(clocks) > 1:
        raise _malformed(f"{where}: {' and '.join(clocks)} are one axis", "keep one of them")
    if not clocks and not set(names) & set(AXES):
        raise _malformed(f"{where}: there is no column to draw over", f"add one of {', '.join([*CLOCKS, *AXES[1:]])}")
    if "accuracy" not in names:
        raise _malformed(f"{where}: there is no column 'accuracy'", "add it")


def _number(cell: str, where: str) -> float:
    if not cell:
        return math.nan
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise _malformed(f"{where}: {cell!r} is no number of 0 or more", "correct it")
    return number


def _scales(path: Path, points: Sequence[_Point]) -> tuple[dict[str, float], list[str]]:
    """The factor of each column (clocks to seconds, percent to shares), and a note on columns in percent.

    Raises DataError for a column whose unit is unknown: another is in percent, and this one is nowhere above 1.
    """
    scales = {name: CLOCKS.get(name, 1.0) for name in points[0].numbers}
    percent = []
    for name in SHARES:
        above = [point for point in points if point.numbers.get(name, 0.0) > 1]
        for point in above:
            if point.numbers[name] > 100:
                raise _malformed(
                    f"{path}, line {point.line}, {name}: {point.numbers[name]:g} is above 100 percent", "correct it"
                )
        if above:
            scales[name] = 0.01
            percent.append(name)
    for name in SHARES if percent else ():
        if name not in percent and any(point.numbers.get(name, 0.0) > 0 for point in points):
            raise _malformed(
                f"{path}: {percent[0]} is in percent, and {name}, which is nowhere above 1, may be either",
                "write both as shares, between 0 and 1",
            )
    note = f"{path}: {', '.join(percent)} taken as percent, as a value is above 1"
    return scales, [note] if percent else []


def _check_seeds(path: Path, of: Mapping[tuple[str | None, str | None], Sequence[_Point]]) -> None:
    for (group, seed), points in of.items():
        if seed is None and any(other == group and named is not None for other, named in of):
            raise _malformed(
                f"{path}, line {points[0].line}: no seed, and other rows of the group have one",
                "give a group one mean curve, or a curve for each seed",
            )


def _curve(
    path: Path, group: str | None, seed: str | None, points: Sequence[_Point], scales: Mapping[str, float]
) -> Curve:
    columns = {name: np.array([p.numbers[name] for p in points]) * scale for name, scale in scales.items()}
    axes = {("seconds" if name in CLOCKS else name): name for name in columns if name in (*CLOCKS, *AXES)}
    axes = {axis: name for axis, name in axes.items() if _is_filled(path, columns[name], points, name)}
    if not axes:
        raise _malformed(f"{path}, line {points[0].line}: no value to draw over", f"give one of {', '.join(AXES)}")
    order = np.lexsort([columns[name] for name in axes.values()])
    for axis, name in axes.items():
        falls = np.flatnonzero(np.diff(columns[name][order]) < 0)
        if len(falls):
            line = points[order[falls[0] + 1]].line
            raise _malformed(
                f"{path}, line {line}: {axis} falls while another axis grows, and all grow with training",
                "correct the line",
            )
    _check_apart(path, np.stack([columns[name][order] for name in axes.values()]), [points[i].line for i in order])
    x = {axis: columns[name][order] for axis, name in axes.items()}
    y = {name: columns[name][order] for name in MEASURES if name in columns and np.isfinite(columns[name]).any()}
    named = ", ".join([*([] if group is None else [group]), *([] if seed is None else [f"seed {seed}"])])
    return Curve(f"{path}" + f" ({named})" * bool(named), seed, x, y)


def _is_filled(path: Path, values: FloatArray, points: Sequence[_Point], name: str) -> bool:
    """Whether a curve has values on this axis. Raises DataError if it has them at some points only."""
    empty = np.isnan(values)
    if empty.any() and not empty.all():
        line = points[int(np.argmax(empty))].line
        raise _malformed(
            f"{path}, line {line}: {name} is empty, and other points of the curve have it",
            "fill it in, or remove the row",
        )
    return not empty.any()


def _check_apart(path: Path, x: FloatArray, lines: Sequence[int]) -> None:
    """Raise DataError if two points [axes, P] of one curve are at the same place on every axis."""
    same = np.flatnonzero((np.diff(x) == 0).all(axis=0))
    if len(same):
        first, second = sorted((lines[same[0]], lines[same[0] + 1]))
        raise _malformed(
            f"{path}, line {second}: the same group, seed and place as line {first}", "give each run a different seed"
        )
