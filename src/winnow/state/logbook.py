"""What a run writes down: metrics.jsonl, one row per step, and rollouts.jsonl, one row per rollout (see rows.py).

A row that cannot be written raises RunFolderError after the file has been cut back to its last whole row. The run
is meant to stop there: resuming from the last checkpoint rewrites the rows since then, bit by bit the same, while a
run that went on would leave a hole that nothing fills. This module imports no torch.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from winnow.errors import DataError, RunFolderError
from winnow.records import Batch, Group, StepReport
from winnow.state.row_check import check_metrics, check_rollout
from winnow.state.rows import LoggedGroup, logged_group, metrics_line, rollout_lines

METRICS = "metrics.jsonl"
ROLLOUTS = "rollouts.jsonl"

_STEP = re.compile(rb'\{"step":\s*(\d{1,15})[,}]')


class Logbook:
    """Appends to the two files of a run folder. Rows are in step order and each is handed to the system at once."""

    def __init__(self, folder: Path, *, seed: int) -> None:
        self._metrics = folder / METRICS
        self._rollouts = folder / ROLLOUTS
        self._seed = seed

    def write(
        self, step: int, metrics: Mapping[str, float], groups: Sequence[Group], batches: Sequence[Batch]
    ) -> StepReport:
        """Log a finished step: its rollouts, then its metrics, whose row says that the step is complete.

        `groups` are filled up to their advantages, in the order that `Row.group` of the batches counts.

        Raises KeyError for a metric without a meaning, ValueError for a group that is not filled, RunFolderError when
        the disk refuses.
        """
        row = metrics_line(step, metrics)
        weights = {row.key: row.weight for batch in batches if batch.epoch == 0 for row in batch.rows}
        lines = itertools.chain.from_iterable(
            rollout_lines(step, self._seed, place, group, weights) for place, group in enumerate(groups)
        )
        _append(self._rollouts, b"".join(lines))
        _append(self._metrics, row)
        return StepReport(step=step, metrics=dict(metrics))

    def write_between(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log what was measured before `step`: an evaluation, a probe. Readers merge it with the step's row. Raises as
        `write`.
        """
        _append(self._metrics, metrics_line(step, metrics))

    def truncate_from(self, step: int) -> None:
        """Forget `step` and everything after it, evaluations and a torn last line included, before a resume.

        Each file is cut once, at a row's beginning: a kill leaves it as it was or as it should be.

        Raises DataError for a damaged row, RunFolderError when the disk refuses.
        """
        for path in (self._rollouts, self._metrics):
            if path.exists():
                with _refusals(path):
                    os.truncate(path, _end_before(path, step))


def read_metrics(path: Path) -> list[dict[str, float]]:
    """One dictionary per step, in step order, evaluations merged in; "step" is a key of each.

    `path` is the file or its run folder. Raises DataError, with the line, for what is not a row.
    """
    path = path / METRICS if path.is_dir() else path
    steps: dict[int, dict[str, float]] = {}
    for number, row in _rows(path, None):
        with _named(path, number, "a row of metrics"):
            check_metrics(row)
        steps.setdefault(row["step"], {}).update({k: math.nan if v is None else v for k, v in row.items()})
    return [steps[step] for step in sorted(steps)]


def totals(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """What the rows of a run cost together: "steps", and sums of budget/..., seconds/... and eval/seconds by name."""
    out: dict[str, float] = {"steps": 0}
    for row in rows:
        out["steps"] += "budget/rollouts" in row
        for name, value in row.items():
            if name.startswith(("budget/", "seconds/", "eval/seconds")) and not math.isnan(value):
                out[name] = out.get(name, 0) + value
    return out


def read_rows(path: Path, step: int | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a rollouts file, one by one, as written; those of one step when given.

    `path` is the file or its run folder. Raises DataError, with the line, for what is not a row.
    """
    return (row for _, row in _rows(path / ROLLOUTS if path.is_dir() else path, step))


def read_rollouts(path: Path, step: int | None = None) -> Iterator[LoggedGroup]:
    """The groups of a rollouts file, rebuilt exactly; those of one step when given. Raises as `read_rows`."""
    path = path / ROLLOUTS if path.is_dir() else path
    rows = _checked_rollouts(path, step)
    for _, of_group in itertools.groupby(rows, key=lambda item: (item[1]["step"], item[1]["prompt_id"])):
        numbers, group = zip(*of_group, strict=True)
        with _named(path, numbers[0], "the first rollout of a group"):
            logged = logged_group(group)
        yield logged


def ends_cut(path: Path) -> bool:
    """Whether a log's last row is cut: it is being written, or its writer was killed. Readers leave such a row out."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.seek(0, os.SEEK_END) > 0 and file.seek(-1, os.SEEK_END) >= 0 and file.read() != b"\n"
    return False


def _append(path: Path, rows: bytes) -> None:
    """Append whole rows or nothing. Raises RunFolderError."""
    rest = memoryview(rows)
    with _refusals(path), path.open("ab", buffering=0) as file:
        end = file.tell()
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            file.truncate(end)
            raise


@contextlib.contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror}; make room, then go on with --resume") from error


def _checked_rollouts(path: Path, step: int | None) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, row in _rows(path, step):
        with _named(path, number, "a rollout as a run logs it"):
            check_rollout(row)
        yield number, row


@contextlib.contextmanager
def _named(path: Path, number: int, what: str) -> Iterator[None]:
    """What is wrong with a row, as a DataError that names file and line."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}, line {number}: not {what} ({error}); repair or delete the line") from error


def _rows(path: Path, step: int | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Parsed rows with their lines; a last line without its end is still being written, or torn, and is left out."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; name a run folder or its log") from error
    with file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n") and (step is None or _step_of(path, number, line) == step):
                yield number, _row(path, number, line)


def _end_before(path: Path, step: int) -> int:
    """Bytes of the whole rows in front of the first one of `step` or later."""
    end = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n") or _step_of(path, number, line) >= step:
                break
            end += len(line)
    return end


def _step_of(path: Path, number: int, line: bytes) -> int:
    """The step of a row; parsing only its beginning is what keeps reading one step of a large file fast."""
    match = _STEP.match(line)
    return int(match[1]) if match else int(_row(path, number, line)["step"])


def _row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, line {number}: not JSON ({error}); repair or delete the line") from error
    step = row.get("step") if isinstance(row, dict) else None
    if type(step) is not int or not 0 <= step < 10**15:
        raise DataError(f"{path}, line {number}: not a row of a run's log, it has no step; delete the line")
    return cast(dict[str, Any], row)
