"""A run folder as data: configuration, checkpoints, and both logs as arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from winnow.errors import ConfigError
from winnow.state.logbook import read_metrics, read_rows
from winnow.state.saved_runs import Manifest, checkpoints, read_manifest

Columns = dict[str, NDArray[Any]]  # name -> [rows]


@dataclass(frozen=True)
class OpenRun:
    """A run's folder. Nothing is read before it is asked for, and nothing is kept but the manifest."""

    path: Path

    @cached_property
    def manifest(self) -> Manifest:
        return read_manifest(self.path, own=False)

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, nested as in TOML."""
        return self.manifest.config

    @property
    def checkpoints(self) -> list[Path]:
        """Model folders, oldest first."""
        return checkpoints(self.path)

    def metrics(self) -> Columns:
        """name -> [steps] float64, NaN where a step has no such number; "step" is int64. See `winnow list metrics`."""
        return _columns(read_metrics(self.path), missing=float("nan"))

    def rollouts(self, step: int | None = None, columns: Collection[str] | None = None) -> Columns:
        """column -> [rollouts] of one step or of all, in the log's order; these columns, or all.

        Numbers and truth values are arrays of their own kind with NaN for none; texts, arrays of tokens and whatever
        else differs from row to row are arrays of objects.
        """
        return _columns(read_rows(self.path, step, columns), missing=None)

    def frame(self, what: Literal["metrics", "rollouts"] = "metrics", step: int | None = None) -> Any:
        """The same as a pandas DataFrame. Raises ConfigError where pandas is not installed."""
        try:
            import pandas
        except ImportError as error:
            raise ConfigError("a data frame needs another library: pip install pandas") from error
        columns = self.metrics() if what == "metrics" else self.rollouts(step)
        # By itself pandas makes Arrow's strings of texts, which hold no lone surrogate
        return pandas.DataFrame({name: pandas.Series(column, dtype=column.dtype) for name, column in columns.items()})


def opened(path: Path) -> OpenRun:
    """The run in a folder. Raises RunFolderError where there is none."""
    run = OpenRun(path.expanduser())
    run.manifest  # noqa: B018  (raises)
    return run


def _columns(rows: Iterable[Mapping[str, Any]], *, missing: Any) -> Columns:
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _array([row.get(name, missing) for row in rows]) for name in names}


def _array(values: list[Any]) -> NDArray[Any]:
    """[rows] of numbers or of truth values where all are; null is NaN among numbers. Else of objects, one per row."""
    kinds = {type(value) for value in values if value is not None}
    if kinds in ({int}, {bool}) and all(value is not None for value in values):
        return np.array(values)
    if kinds and kinds <= {int, float}:
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    array = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):  # at once, lists of one length would become a second axis
        array[place] = value
    return array
