"""The files of a TRL run: the state of its trainer, and its tables of completions, each read alone.

A table has the columns step, prompt, completion, one per reward function, those that the user's functions log, and
advantage; winnow_trl adds kept. Written by TRL 1.16.0.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from winnow.errors import DataError
from winnow.records import BoolArray, FloatArray
from winnow.state.disk import errors_as
from winnow_lab.logs.reading import malformed, metric, written

if TYPE_CHECKING:
    import pyarrow as pa

COMPLETIONS = "completions"
STATE = "trainer_state.json"
KEPT = "kept"  # the column of winnow_trl: null in the rows of an evaluation
OWN = ("step", "prompt", "completion", "advantage")
_CHECKPOINT = re.compile(r"checkpoint-\d+")
_REWARD = re.compile(r"rewards/(.+)/mean")
_EVALUATION = re.compile(r"eval_(?:(.+)_)?runtime")  # the name of the data set, if there are several
_NEAR = 1e-3  # relative: rewards are float32 in the state


@dataclass(frozen=True)
class TrainerState:
    """The metrics of a trainer_state.json. Steps are TRL's, which counts them from 1."""

    path: Path
    rewards: tuple[str, ...]  # the names of the reward functions
    rows: Mapping[int, Mapping[str, Any]]  # step -> the metrics of training
    evaluations: Mapping[int, Mapping[str, Mapping[str, Any]]]  # step -> data set ("" if there is one) -> its metrics

    def metric(self, step: int, name: str) -> float:
        """A metric of a step of training; NaN if it was not logged."""
        return metric(self.path, f"step {step}", name, self.rows.get(step, {}).get(name))

    def part(self, step: int, name: str) -> float:
        """The logged mean of a reward, over the rollouts for which its function returned one."""
        return self.metric(step, f"rewards/{name}/mean")


def newest_state(folder: Path) -> TrainerState:
    """The state with the most steps, of an output folder or of a checkpoint in it. Raises DataError without any."""
    with errors_as(DataError, f"cannot read {folder}", "make it readable", code="data.unreadable"):
        inner = [own for own in folder.iterdir() if _CHECKPOINT.fullmatch(own.name) and (own / STATE).is_file()]
        # The newest checkpoint has the rows of the earlier ones
        last = sorted(inner, key=lambda own: int(own.name.rpartition("-")[2]))[-1:]
        paths = [own / STATE for own in (folder, *last) if (own / STATE).is_file()]
        states = [_read_state(path, written(path)) for path in paths]
    if not states:
        raise DataError(
            f"{folder} has no {STATE}, which names the rewards among the columns of the tables",
            remedy="call trainer.save_state() after training, or keep a checkpoint",
            code="data.missing",
        )
    newest = max(states, key=lambda state: max(state.rows, default=-1))
    if not newest.rewards:
        raise malformed(newest.path, "has no metrics 'rewards/NAME/mean', so it is not the state of a GRPOTrainer")
    return newest


@functools.lru_cache(maxsize=16)
def _read_state(path: Path, when: tuple[int, ...]) -> TrainerState:
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise malformed(path, f"is no JSON ({error})") from error
    history = data.get("log_history") if isinstance(data, dict) else None
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
        raise malformed(path, "has no list of metrics, 'log_history'")
    of_steps = [row for row in history if isinstance(row.get("step"), int)]
    rows, spent, before = dict[int, Mapping[str, Any]](), 0.0, 0
    for row in of_steps:
        seconds = row.get("step_time")
        if isinstance(seconds, (int, float)):  # the mean of the steps since the last row, of which some sample nothing
            spent, before = spent + seconds * (row["step"] - before), row["step"]
        if "reward" in row:
            rows[row["step"]], spent = {**row, "step_time": spent} if spent else row, 0.0
    evaluations: dict[int, dict[str, Mapping[str, Any]]] = {}
    for row in of_steps:
        if "eval_reward" in row:
            sets = [match[1] for key in row if (match := _EVALUATION.fullmatch(key)) and match[1]]
            evaluations.setdefault(int(row["step"]), {})[sets[0] if sets else ""] = row
    names = dict.fromkeys(match[1] for row in rows.values() for key in row if (match := _REWARD.fullmatch(key)))
    return TrainerState(path, tuple(names), rows, evaluations)


def read_table(path: Path, step: int, rewards: Sequence[str]) -> pa.Table:
    """The table of a step of TRL. Raises DataError if it is damaged, lacks a column, or is of another step."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _refused(path):
        path.open("rb").close()  # its OSError has a shorter reason than pyarrow's
        table = pq.read_table(path)
    for name in (*OWN, *rewards):
        if name not in table.column_names:
            kind = "reward" if name in rewards else "column"
            raise malformed(path, f"has no {kind} {name!r}")
    if not len(table):
        raise malformed(path, "has no rows")
    for name in ("advantage", *rewards):
        kind = table[name].type
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
            raise malformed(path, f"has a column {name!r} of type {kind}, and not of numbers")
        if np.isinf(column(table, name)).any():
            raise malformed(path, f"has an infinite number in the column {name!r}")
    steps = set(table["step"].to_pylist())
    if steps != {step}:
        raise malformed(path, f"has rows of the steps {', '.join(map(str, sorted(steps, key=str)))}")
    return table


def column_names(path: Path) -> list[str]:
    """The names of a table's columns; none of a damaged one, which is refused if it is read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with suppress(OSError, ValueError, pa.ArrowException):
        return list(pq.read_schema(path).names)
    return []


def count_rows(path: Path) -> int:
    """The number of rows of a table, from its footer. Raises DataError if it is damaged."""
    import pyarrow.parquet as pq

    with _refused(path):
        return int(pq.read_metadata(path).num_rows)


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """An error inside, of reading a table, becomes a DataError."""
    import pyarrow as pa

    wrong = (ValueError, TypeError, KeyError, OverflowError, pa.ArrowException)
    with (
        errors_as(DataError, f"cannot read {path}", "make it readable", code="data.unreadable"),
        errors_as(DataError, f"{path} is no table", "restore or remove it", code="data.malformed", of=wrong),
    ):
        yield


def column(table: pa.Table, name: str) -> FloatArray:
    """[rows] numbers, NaN for null."""
    return np.array([math.nan if value is None else value for value in table[name].to_pylist()], dtype=np.float64)


def sums_of(table: pa.Table, weights: Mapping[str, float]) -> FloatArray:
    """[rows] weighted sums of the rewards, as TRL adds them: a function that returned None is omitted from a row's sum.
    NaN for a row without any reward.
    """
    parts = np.array([column(table, name) for name in weights], dtype=np.float64)
    total = np.nansum(parts * np.array([*weights.values()])[:, None], axis=0)
    return np.asarray(np.where(np.isnan(parts).all(axis=0), np.nan, total), dtype=np.float64)


def kept_of(path: Path, table: pa.Table) -> BoolArray:
    """[rows] whether the run trained on it: all of them, unless winnow_trl selected."""
    if KEPT not in table.column_names:
        return np.ones(len(table), dtype=np.bool_)
    kept = table[KEPT].to_pylist()
    if not all(isinstance(value, bool) for value in kept):
        raise malformed(path, f"has a column {KEPT!r} that is no column of truth values")
    return np.array(kept, dtype=np.bool_)


def is_whole(path: Path, state: TrainerState, step: int) -> bool:
    """Whether the logged means of the rewards of a step are those of its table. Raises DataError as `read_table`."""
    found = _means(path, written(path), step, state.rewards)
    return all(is_near(mean, state.part(step, name)) for mean, name in zip(found, state.rewards, strict=True))


@functools.lru_cache(maxsize=4096)
def _means(path: Path, when: tuple[int, ...], step: int, rewards: tuple[str, ...]) -> tuple[float, ...]:
    table = read_table(path, step, rewards)
    return tuple(mean_of(column(table, name)) for name in rewards)


def omits_rewards(path: Path, state: TrainerState, step: int) -> bool:
    """Whether a reward function returned None for a row of a table. Raises DataError as `read_table`."""
    return _omits(path, written(path), step, state.rewards)


@functools.lru_cache(maxsize=4096)
def _omits(path: Path, when: tuple[int, ...], step: int, rewards: tuple[str, ...]) -> bool:
    table = read_table(path, step, rewards)
    return any(table[name].null_count for name in rewards)


def is_of_evaluation(path: Path, earlier: Path) -> bool:
    """Whether a table has the rows of an earlier one of an evaluation: nothing was generated between the two."""
    with suppress(OSError):
        return _has_rows_of(path, written(path), earlier, written(earlier))
    return False


@functools.lru_cache(maxsize=4096)
def _has_rows_of(path: Path, when: tuple[int, ...], earlier: Path, written: tuple[int, ...]) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with suppress(OSError, ValueError, pa.ArrowException):  # a damaged table is refused if it is read
        names = ["prompt", "completion", "advantage"]
        return bool(pq.read_table(path, columns=names).equals(pq.read_table(earlier, columns=names)))
    return False


def is_marked(path: Path) -> bool:
    """Whether winnow_trl marked rows of a table as those of an evaluation."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with suppress(OSError, ValueError, pa.ArrowException):
        return KEPT in column_names(path) and pq.read_table(path, columns=[KEPT])[KEPT].null_count > 0
    return False


def mean_of(values: FloatArray) -> float:
    """The mean without NaN; NaN if nothing is left."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def is_near(found: float, logged: float) -> bool:
    """Whether a number is the logged one, up to its rounding; NaN is near NaN only."""
    if math.isnan(found) or math.isnan(logged):
        return math.isnan(found) == math.isnan(logged)
    return abs(found - logged) <= _NEAR * max(1.0, abs(logged))


def text_of(value: Any) -> str:
    """A prompt or a completion: a text, the content of its only message, or messages after the names of their roles."""
    if isinstance(value, str):
        return value
    messages = [message if isinstance(message, dict) else {"content": message} for message in value or ()]
    contents = [(message.get("role"), message.get("content") or "") for message in messages]
    texts = [(role, text if isinstance(text, str) else json.dumps(text, default=repr)) for role, text in contents]
    return texts[0][1] if len(texts) == 1 else "\n".join(f"{role}: {text}" for role, text in texts)
