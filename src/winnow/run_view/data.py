"""A run folder as data: configuration, checkpoints, and both logs as arrays or as data frames."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from winnow.alarms.watch import alarms_of_run
from winnow.errors import ConfigError, RunFolderError, WinnowError, near_miss
from winnow.metrics import is_step
from winnow.records import Alarm
from winnow.run_view.configuration import evaluations, heading
from winnow.state.folder import FOLDER, SWEEP, find, is_checkpoint_path
from winnow.state.log import METRICS
from winnow.state.logbook import is_new, read_metrics, read_rows
from winnow.state.manifest import MANIFEST
from winnow.state.saved_runs import Manifest, describe
from winnow.view.text import one_line

Columns = dict[str, NDArray[Any]]  # name -> [rows]
What = Literal["metrics", "evaluations", "rollouts"]


@dataclass(frozen=True, repr=False)
class OpenRun:
    """A run's folder. The manifest is read once, and the other files at every call.

    The methods return columns, name -> array; `frame` returns the same as a pandas DataFrame.
    """

    path: Path  # of the folder

    @cached_property
    def _manifest(self) -> Manifest:
        return describe(self.path)

    @property
    def manifest(self) -> dict[str, Any]:
        """The contents of manifest.json: configuration, versions, device, digests of the files that the run read."""
        return self._manifest.data

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, nested as in TOML."""
        return self._manifest.config

    @property
    def checkpoints(self) -> dict[int, Path]:
        """Steps done -> model folder, oldest first."""
        return {step: path for step, path in find(self.path) if path.is_dir()}

    def metrics(self) -> Columns:
        """name -> [steps] float64, NaN if a step has no such number; "step" is int64. See `winnow list metrics`.

        The metrics of an evaluation or a probe before a step are in the row of that step. An evaluation after the last
        step is only in `evaluations()`, so the last number of a column is that of the last step.
        """
        return _numbers(row for row in self._rows() if is_step(row))

    def evaluations(self) -> Columns:
        """name -> [evaluations]: "step", the number of steps done before, and the metrics eval/..."""
        rows = [row for row in self._rows() if any(name.startswith("eval/") for name in row)]
        return _numbers({name: row[name] for name in row if name == "step" or name.startswith("eval/")} for row in rows)

    def alarms(self) -> list[Alarm]:
        """The alarms that were raised, in order, each with its step, name and text (docs/watching.md)."""
        return alarms_of_run(self._rows(), self.config, evaluated_since=evaluations(self.manifest).since)

    def rollouts(self, step: int | None = None, columns: Collection[str] | None = None) -> Columns:
        """column -> [rollouts] of one step or of all, in the log's order: "step" and `columns`, or all columns. Other
        columns are not read.

        Numbers are numeric arrays with NaN for a missing one. Truth values are bool arrays, or objects if one is None.
        Texts, `answer`, `meta` and `parts` (decoded JSON) are objects; so are arrays of tokens or log-probs [length].
        """
        _check_names(columns)
        wanted = None if columns is None else list(dict.fromkeys(("step", *columns)))
        logged = _columns(read_rows(self.path, step, wanted), missing=None)
        return logged or {name: np.empty(0, dtype=object) for name in wanted or ()}

    def frame(self, what: What = "metrics", *, step: int | None = None, columns: Collection[str] | None = None) -> Any:
        """`metrics()`, `evaluations()` or `rollouts(step, columns)` as a pandas DataFrame. Booleans with None have
        the type "boolean" of pandas. Raises ConfigError without pandas, and for a `step` with anything but rollouts.
        """
        if step is not None and what != "rollouts":
            raise ConfigError(
                f"step = {step!r} applies to rollouts only, and was given for {what}",
                remedy=f"choose the row: frame[frame.step == {step!r}]",
                code="config.combination",
            )
        try:
            import pandas
        except ImportError as error:
            raise ConfigError(
                "a data frame needs the package 'pandas', which is not installed here",
                remedy="pip install 'winnow-rl[pandas]'",
                code="config.not_installed",
            ) from error
        data = self.rollouts(step, columns) if what == "rollouts" else _metric_columns(self, what, columns)
        # By default pandas stores texts as Arrow strings, which cannot contain a lone surrogate
        return pandas.DataFrame({name: pandas.Series(array, dtype=_kind(array)) for name, array in data.items()})

    def __repr__(self) -> str:
        try:
            steps, saved = sum(map(is_step, self._rows())), len(self.checkpoints)
            done = f"{steps} of {self.config.get('steps', '?')} steps"
            parts = (done, f"{saved} checkpoint{'s' * (saved != 1)}", heading(self.config))
            summary = f": {', '.join(filter(None, parts))}"
        except WinnowError:  # a damaged log
            summary = ""
        return one_line(f"OpenRun({str(self.path)!r}){summary}")

    def _rows(self) -> list[dict[str, float]]:
        """The rows of the log of metrics; none where the run has neither a log nor a checkpoint yet."""
        return [] if is_new(self.path) else read_metrics(self.path)


def open_folder(path: Path) -> OpenRun:
    """The run in a folder. Raises RunFolderError if there is none; the message names a run that is probably meant."""
    run = OpenRun(Path(os.path.expanduser(path)))
    if not (run.path / MANIFEST).exists():
        _check_place(run.path)
    run.manifest  # noqa: B018  (raises)
    return run


def _check_place(path: Path) -> None:
    """Raise RunFolderError where the path is a part of a run, or a sweep of runs, instead of a run folder."""
    if (path / SWEEP).is_file():
        started = [manifest.parent for manifest in sorted(path.glob(f"*/*/{MANIFEST}"))]
        raise RunFolderError(
            f"{path} is a sweep, of which {len(started)} runs have started",
            remedy=(f"open one of them, such as {started[0]}; " if started else "")
            + "use winnow compare to compare its runs",
            code="run_folder.foreign",
        )
    around = path.resolve()
    for run in (around.parent.parent if is_checkpoint_path(around) else around.parent, around.parent):
        if (run / MANIFEST).is_file() and (around.name in (FOLDER, METRICS, MANIFEST) or is_checkpoint_path(around)):
            raise RunFolderError(
                f"{path} belongs to the run {run}", remedy="open that folder", code="run_folder.foreign"
            )


def _metric_columns(run: OpenRun, what: str, columns: Collection[str] | None) -> Columns:
    if what not in ("metrics", "evaluations"):
        raise ConfigError(
            f"there is no frame of {what!r}",
            remedy="choose 'metrics', 'evaluations' or 'rollouts'",
            code="config.unknown_name",
        )
    _check_names(columns)
    data = run.metrics() if what == "metrics" else run.evaluations()
    for name in columns or ():
        if not len(data["step"]):
            data.setdefault(name, np.empty(0))
        if name not in data:
            raise ConfigError(
                f"the run's {what} have no {name!r}", remedy=near_miss(name, data), code="config.unknown_name"
            )
    return data if columns is None else {name: data[name] for name in columns}


def _check_names(columns: Collection[str] | None) -> None:
    if isinstance(columns, str):
        raise ConfigError(
            f"columns is {columns!r}, and not a list of names",
            remedy=f"write columns=[{columns!r}]",
            code="config.value",
        )


def _kind(array: NDArray[Any]) -> Any:
    """The dtype that an array gets in pandas."""
    kinds = {type(value) for value in array} if array.dtype == object else set()
    return "boolean" if kinds == {bool, type(None)} else array.dtype


def _numbers(rows: Iterable[Mapping[str, float]]) -> Columns:
    """The columns of rows of metrics; without rows, only "step", empty."""
    return _columns(rows, missing=float("nan")) or {"step": np.empty(0, dtype=np.int64)}


def _columns(rows: Iterable[Mapping[str, Any]], *, missing: Any) -> Columns:
    """The columns of the rows. No row is kept, so each value of an iterator of rows is in memory once."""
    values: dict[str, list[Any]] = {}
    count = 0
    for count, row in enumerate(rows, start=1):
        for name, value in row.items():
            column = values.setdefault(name, [])
            column.extend([missing] * (count - 1 - len(column)))
            column.append(value)
    return {name: _array([*column, *[missing] * (count - len(column))]) for name, column in values.items()}


def _array(values: list[Any]) -> NDArray[Any]:
    """[rows] of numbers (NaN for null) or of truth values, where all values have that type; else of objects, one per
    row.
    """
    kinds = {type(value) for value in values if value is not None}
    if kinds in ({int}, {bool}) and all(value is not None for value in values):
        return np.array(values)
    if kinds and kinds <= {int, float}:
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    array = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):  # np.array would make a second axis of lists of equal length
        array[place] = value
    return array
