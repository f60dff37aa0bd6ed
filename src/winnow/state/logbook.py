"""The logs of a run: metrics.jsonl, one row per step, and rollouts.jsonl, one row per rollout (see log_rows.py).

A row that cannot be written raises RunFolderError after the file has been cut back to its last whole row. The run
should then stop: a resume from the last checkpoint rewrites the rows since then, bit by bit the same, while a run that
continued would have a gap in its logs. This module imports no torch.
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
from types import MappingProxyType
from typing import Any, cast

from winnow import ranks
from winnow.errors import DataError, RunFolderError
from winnow.records import Batch, Group, StepReport
from winnow.state.disk import InTheWay, check_kind, opened, sync, write_all
from winnow.state.log_marks import Mark, lost, synced_mark
from winnow.state.log_row_check import check_metrics, check_rollout
from winnow.state.log_rows import LoggedGroup, logged_group, metrics_line, rollout_lines

METRICS = "metrics.jsonl"
ROLLOUTS = "rollouts.jsonl"

_STEP = re.compile(rb'\{"step":\s*(\d{1,15})[,}]')


class Logbook:
    """Appends to the two files of a run folder. Rows are in step order, and each is written at once.

    `marks` say where the files ended, by name, when the checkpoint was saved from which the run resumes.
    """

    def __init__(self, folder: Path, *, seed: int, marks: Mapping[str, Mark] = MappingProxyType({})) -> None:
        self._metrics = folder / METRICS
        self._rollouts = folder / ROLLOUTS
        self._seed = seed
        self._marks = marks
        self._began: dict[str, tuple[int, int]] = {}  # by file name: the newest step in it, and the byte it begins at

    def check(self, saved: Path | None = None) -> None:
        """Raise RunFolderError unless both files can be written and hold every row that the checkpoint in `saved`
        relies on, which may be missing after a power cut or an edit.
        """
        for path in (self._rollouts, self._metrics):
            with _refusals(path):
                check_kind(path, "a file")
                mark = self._marks.get(path.name)
                what = None if mark is None else lost(path, mark)
            if what is not None:
                raise RunFolderError(
                    f"{path} lacks rows that it had when the checkpoint {saved} was saved: {what}; {_extent(path)}. "
                    f"Put the file back as it was; or delete the checkpoint, to go on from the one before it; or, to "
                    f'go on without these rows, remove "logs" from {saved}/manifest.json'
                )

    def sync(self, step: int) -> dict[str, Mark]:
        """Wait until every row is on the disk, and return where the rows before `step` end in each file, on which the
        checkpoint of `step` will rely. `step` is the newest one that has rows, or the next.

        Raises RunFolderError when that fails.
        """
        marks: dict[str, Mark] = {}
        for path in (self._rollouts, self._metrics):
            newest, began = self._began.get(path.name, (-1, 0))
            with _refusals(path):
                sync(path.parent)
                if path.exists():
                    marks[path.name] = synced_mark(path, began if newest >= step else None)
        return marks

    def write(
        self, step: int, metrics: Mapping[str, float], groups: Sequence[Group], batches: Sequence[Batch]
    ) -> StepReport:
        """Log a finished step: its rollouts, then its metrics, whose row marks the step as complete.

        `groups` are filled up to their advantages, in the order that `TrainingSequence.group` of the batches counts.

        Raises KeyError for a metric without a meaning, ValueError for a group that is not filled, RunFolderError when
        writing fails.
        """
        row = metrics_line(step, metrics)
        weights = {row.key: row.weight for batch in batches if batch.epoch == 0 for row in batch.sequences}
        lines = itertools.chain.from_iterable(
            rollout_lines(step, self._seed, place, group, weights) for place, group in enumerate(groups)
        )
        self._append(self._rollouts, step, b"".join(lines))
        self._append(self._metrics, step, row)
        return StepReport(step=step, metrics=dict(metrics))

    def write_between(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log what was measured before `step`: an evaluation, a probe. Readers merge it with the step's row. Raises as
        `write`.
        """
        self._append(self._metrics, step, metrics_line(step, metrics))

    def truncate_from(self, step: int, *, but_evaluation: bool = False) -> bool:
        """Remove `step` and everything after it, an incomplete last line included, before a resume.

        With `but_evaluation` an evaluation before `step` stays, as it is one of the weights that are resumed. Returns
        whether there is one. Each file is cut once, at a row's beginning, so that a kill leaves it either uncut or cut.
        A damaged row after its mark was never synced, and is removed with everything after it.

        Raises DataError for a damaged row elsewhere, RunFolderError when cutting fails.
        """
        stays = False
        for path in (self._rollouts, self._metrics):
            with _refusals(path):
                check_kind(path, "a file")
            if path.exists():
                mark = self._marks.get(path.name)
                end, rest = _end_before(path, step, trusted=math.inf if mark is None else mark.bytes)
                stays = but_evaluation and _is_evaluation(rest, step)
                if ranks.is_writer():
                    with _refusals(path), opened(path, os.O_WRONLY) as descriptor:
                        os.ftruncate(descriptor, end + len(rest) * stays)
                self._began[path.name] = (step, end)
        return stays

    def _append(self, path: Path, step: int, rows: bytes) -> None:
        if not ranks.is_writer():
            return
        if self._began.get(path.name, (-1, 0))[0] < step:  # before writing: a signal may arrive right after it
            self._began[path.name] = (step, path.stat().st_size if path.exists() else 0)
        _append(path, rows)


def read_metrics(path: Path) -> list[dict[str, float]]:
    """One dictionary per step, in step order, evaluations merged in; "step" is a key of each.

    `path` is the file or its run folder. Raises DataError, with the line, for a line that is not a row.
    """
    path = path / METRICS if path.is_dir() else path
    steps: dict[int, dict[str, float]] = {}
    for number, row in _rows(path, None):
        with _named(path, number, "a row of metrics"):
            check_metrics(row)
        steps.setdefault(row["step"], {}).update({k: math.nan if v is None else v for k, v in row.items()})
    return [steps[step] for step in sorted(steps)]


def totals(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The totals over the rows of a run: "steps", and sums of budget/..., seconds/... and eval/seconds by name."""
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
    """Whether a log's last row is incomplete: it is being written, or the writer was killed. Readers ignore it."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.seek(0, os.SEEK_END) > 0 and file.seek(-1, os.SEEK_END) >= 0 and file.read() != b"\n"
    return False


def _append(path: Path, rows: bytes) -> None:
    """Append whole rows or nothing. Raises RunFolderError."""
    with _refusals(path), opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as descriptor:
        end = os.fstat(descriptor).st_size
        try:
            write_all(descriptor, rows)
        except OSError:
            os.ftruncate(descriptor, end)
            raise


@contextlib.contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "move it away" if isinstance(error, InTheWay) else "make room"
        raise RunFolderError(f"cannot write {path}: {error.strerror}; {remedy}, then resume the run") from error


def _checked_rollouts(path: Path, step: int | None) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, row in _rows(path, step):
        with _named(path, number, "a rollout as a run logs it"):
            check_rollout(row)
        yield number, row


@contextlib.contextmanager
def _named(path: Path, number: int, what: str) -> Iterator[None]:
    """A TypeError or ValueError inside becomes a DataError that names file and line."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}, line {number}: not {what} ({error}); repair or delete the line") from error


def _rows(path: Path, step: int | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Parsed rows with their line numbers; an incomplete last line is ignored."""
    try:
        check_kind(path, "a file", follow=True)  # opening a pipe would wait for its writer
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; name a run folder or its log") from error
    with file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n") and (step is None or _step_of(path, number, line) == step):
                yield number, _row(path, number, line)


def _end_before(path: Path, step: int, *, trusted: float) -> tuple[int, bytes]:
    """The number of bytes before the first row of `step` or later, or before the first damaged row that starts at byte
    `trusted` or later; and that row of `step`.
    """
    end = 0
    try:
        for line, of in _whole(path):
            if of >= step:
                return end, line
            end += len(line)
    except DataError:
        if end < trusted:
            raise
    return end, b""


def _is_evaluation(line: bytes, step: int) -> bool:
    """Whether a row is that of the evaluation before `step`, which is the first row of its step."""
    try:
        row = json.loads(line)
    except ValueError:
        return False
    return isinstance(row, dict) and row.get("step") == step and "eval/seconds" in row


def _extent(path: Path) -> str:
    """Up to which step a log goes, for a message."""
    steps: list[int] = []
    with contextlib.suppress(DataError, OSError):
        for _, step in _whole(path):
            steps[:] = [step]
    return f"its last whole row is of step {steps[0]}" if steps else "it holds no whole row"


def _whole(path: Path) -> Iterator[tuple[bytes, int]]:
    """Each whole row and its step."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            yield line, _step_of(path, number, line)


def _step_of(path: Path, number: int, line: bytes) -> int:
    """The step of a row; only its beginning is parsed, so that reading one step of a large file is fast."""
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
