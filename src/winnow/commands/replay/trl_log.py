"""The output folder of a TRL GRPOTrainer as a `LoggedRun`.

    RUN/completions/completions_00005.parquet   with `log_completions=True`: a row per completion, one file per log
    RUN/trainer_state.json                      of `trainer.save_state()`, or
    RUN/checkpoint-500/trainer_state.json       of a checkpoint; the newest state is read

The table has the columns step, prompt, completion, one per reward function, those that the user's functions log, and
advantage; winnow_trl adds kept. Only the names of rewards in the state's metrics distinguish a reward from a column of
the user's. Neither file has lengths in tokens, weights of rewards, a seed, or the number of rollouts per prompt.
Written by TRL 1.16.0.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from winnow.algos.plain_groups import plain_group
from winnow.commands.replay.logged import LoggedRun, SampledGroup, SampledStep
from winnow.errors import ConfigError, DataError
from winnow.records import BoolArray, FloatArray
from winnow.state.disk import errors_as

if TYPE_CHECKING:
    import pyarrow as pa

COMPLETIONS = "completions"
STATE = "trainer_state.json"
KEPT = "kept"  # the column of winnow_trl
OWN = ("step", "prompt", "completion", "advantage")
_FILE = re.compile(r"completions_(\d{5,})\.parquet")
_CHECKPOINT = re.compile(r"checkpoint-\d+")
_REWARD = re.compile(r"rewards/(.+)/mean")
_NEAR = 1e-3  # rewards are float32 there, and means of means here
_LENGTH = "completions/mean_length"


@dataclass(frozen=True)
class TrainerState:
    """The metrics of a trainer_state.json that name rewards and give lengths."""

    path: Path
    rewards: tuple[str, ...]  # the names of the reward functions, in the order of the metrics
    rows: Mapping[int, Mapping[str, Any]]  # step -> its metrics

    def metric(self, step: int, name: str) -> float:
        """A metric of a step; NaN where it was not logged."""
        value = self.rows.get(step, {}).get(name)
        return float(value) if isinstance(value, (int, float)) else math.nan


def is_trl(path: Path) -> bool:
    """Whether a folder has TRL's table of completions, or its state."""
    return (path / COMPLETIONS).is_dir() or (path / STATE).is_file()


def parse_weights(text: str) -> list[float]:
    """ "1,0.5" as numbers. Raises ConfigError."""
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(
            f"weights = {text!r} is no list of numbers",
            remedy="write them as 1,0.5",
            key="weights",
            code="config.value",
        ) from error
    return weights


def read_trl(path: Path, *, weights: Sequence[float] | None = None, group: int | None = None) -> LoggedRun:
    """The run of an output folder. `weights` are reward_weights (1 each by default), `group` the rollouts per prompt.

    Steps after the newest saved state are omitted, with a note. Raises DataError where a file is missing, damaged or
    does not fit the others, also while the steps are read; ConfigError for a wrong number of weights.
    """
    with errors_as(DataError, f"cannot read {path}", "make it readable", code="data.unreadable"):
        files = _files(path / COMPLETIONS)
        state = _newest_state(path)
    used = _weights(state, weights)
    run = LoggedRun(program="TRL", seed=0, steps=iter(()), estimated=True, notes=[])
    run.steps = _steps(run, files, state, used, group)
    return run


def _files(folder: Path) -> dict[int, Path]:
    """step -> file. Raises DataError where there is none."""
    found: dict[int, Path] = {}
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            match = _FILE.fullmatch(path.name)
            if match:
                if int(match[1]) in found:
                    raise DataError(
                        f"{found[int(match[1])]} and {path} are both of step {int(match[1])}",
                        remedy="remove one of them",
                        code="data.malformed",
                    )
                found[int(match[1])] = path
    if not found:
        raise DataError(
            f"{folder} contains no table of completions",
            remedy="train with GRPOConfig(log_completions=True), and name the output_dir",
            code="data.missing",
        )
    return dict(sorted(found.items()))


def _newest_state(path: Path) -> TrainerState:
    folders = [path, *(own for own in sorted(path.iterdir()) if own.is_dir() and _CHECKPOINT.fullmatch(own.name))]
    states = [_state(folder / STATE) for folder in folders if (folder / STATE).is_file()]
    if not states:
        raise DataError(
            f"{path} has no {STATE}, which names the rewards among the columns of the tables",
            remedy="call trainer.save_state() after training, or keep a checkpoint",
            code="data.missing",
        )
    return max(states, key=lambda state: max(state.rows, default=-1))


def _state(path: Path) -> TrainerState:
    try:
        data = json.loads(path.read_bytes())
    except ValueError as error:
        raise _malformed(path, f"is no JSON ({error})") from error
    history = data.get("log_history") if isinstance(data, dict) else None
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
        raise _malformed(path, "has no list of metrics, 'log_history'")
    rows = {int(row["step"]): row for row in history if isinstance(row.get("step"), int) and "reward" in row}
    names = dict.fromkeys(match[1] for row in rows.values() for key in row if (match := _REWARD.fullmatch(key)))
    if not names:
        raise _malformed(path, "has no metrics 'rewards/NAME/mean', so it is not the state of a GRPOTrainer")
    return TrainerState(path, tuple(names), rows)


def _weights(state: TrainerState, given: Sequence[float] | None) -> list[float]:
    """The weights of the rewards. Raises DataError where the logged rewards contradict them."""
    weights = [1.0] * len(state.rewards) if given is None else list(given)
    if len(weights) != len(state.rewards):
        raise ConfigError(
            f"{len(weights)} weights are given for {len(state.rewards)} rewards: {', '.join(state.rewards)}",
            remedy="give one for each",
            key="weights",
            code="config.value",
        )
    for step in state.rows:
        parts = [state.metric(step, f"rewards/{name}/mean") for name in state.rewards]
        total = state.metric(step, "reward")
        expected = float(np.dot(weights, parts))
        # Means are linear in the rewards unless a function returned None for a row: then nothing can be checked
        if math.isfinite(total + expected) and abs(total - expected) > _NEAR * max(1.0, abs(total)):
            raise DataError(
                f"{state.path}, step {step}: the mean reward is {total:g}, and {expected:g} with the weights "
                f"{', '.join(f'{weight:g}' for weight in weights)} of {', '.join(state.rewards)}",
                remedy="give the run's reward_weights, in this order",
                key="weights",
                code="data.mismatch",
            )
    return weights


def _steps(
    run: LoggedRun, files: Mapping[int, Path], state: TrainerState, weights: Sequence[float], group: int | None
) -> Iterator[SampledStep]:
    late, elsewhere, unread = list[int](), list[int](), dict[str, None]()
    for step, path in files.items():
        if step not in state.rows:
            late.append(step)
            continue
        table = _table(path, step, state)
        unread |= dict.fromkeys(name for name in table.column_names if name not in (*OWN, KEPT, *state.rewards))
        rewards = _rewards(path, table, state.rewards, weights)
        if not _is_mean(state.metric(step, "reward"), rewards[~np.isnan(rewards)]):
            elsewhere.append(step)
        yield SampledStep(step=step, groups=tuple(_groups(path, table, rewards, state.metric(step, _LENGTH), group)))
    if unread:
        run.notes.append(f"columns that are not rewards of this run, and are not read: {', '.join(unread)}")
    if late:
        run.notes.append(
            f"{len(late)} steps, {late[0]} to {late[-1]}, are omitted: the newest state, {state.path}, has no metrics "
            f"of them"
        )
    if elsewhere:
        run.notes.append(
            f"in {len(elsewhere)} steps the logged mean reward is that of more rollouts than the table has: TRL logs "
            f"the last generation of a step, or of `logging_steps` steps"
        )
    if not set(files) - set(late):
        raise DataError(
            f"{state.path} has no metrics of any step in {COMPLETIONS}",
            remedy="name the output_dir of one run",
            code="data.mismatch",
        )


def _is_mean(logged: float, rewards: FloatArray) -> bool:
    """Whether a logged mean is that of these rewards; True where there is none of either."""
    mean = float(rewards.mean()) if len(rewards) else math.nan
    return not abs(mean - logged) > _NEAR * max(1.0, abs(mean))


def _table(path: Path, step: int, state: TrainerState) -> pa.Table:
    """The table of a step. Raises DataError where it is damaged, lacks a column, or is of another step."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    wrong = (ValueError, TypeError, KeyError, OverflowError, pa.ArrowException)
    with (
        errors_as(DataError, f"cannot read {path}", "make it readable", code="data.unreadable"),
        errors_as(DataError, f"{path} is no table", "restore or remove it", code="data.malformed", of=wrong),
    ):
        path.open("rb").close()  # its OSError has a shorter reason than pyarrow's
        table = pq.read_table(path)
    for name in (*OWN, *state.rewards):
        if name not in table.column_names:
            kind = "reward" if name in state.rewards else "column"
            raise _malformed(path, f"has no {kind} {name!r}")
    if not len(table):
        raise _malformed(path, "has no rows")
    for name in ("advantage", *state.rewards):
        if not (pa.types.is_floating(table[name].type) or pa.types.is_integer(table[name].type)):
            raise _malformed(path, f"has a column {name!r} of type {table[name].type}, and not of numbers")
    steps = set(table["step"].to_pylist())
    if steps != {step}:
        raise _malformed(path, f"has rows of the steps {', '.join(map(str, sorted(steps, key=str)))}")
    return table


def _rewards(path: Path, table: pa.Table, names: Sequence[str], weights: Sequence[float]) -> FloatArray:
    """[rows] weighted sums; NaN where no function returned a reward. Raises DataError for an infinite reward."""
    parts = np.array([[_number(value) for value in table[name].to_pylist()] for name in names], dtype=np.float64)
    if np.isinf(parts).any():
        raise _malformed(path, "has a reward that is infinite")
    total = np.nansum(parts * np.array(weights)[:, None], axis=0)
    return np.asarray(np.where(np.isnan(parts).all(axis=0), np.nan, total), dtype=np.float64)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _groups(
    path: Path, table: pa.Table, rewards: FloatArray, mean_length: float, size: int | None
) -> Iterator[SampledGroup]:
    """The groups: consecutive rows of one prompt, or of `size` each. Raises DataError where they are unequal."""
    prompts = [_key(prompt) for prompt in table["prompt"].to_pylist()]
    sizes = [len(list(same)) for _, same in itertools.groupby(prompts)]
    if size is None and len(set(sizes)) > 1:
        raise DataError(
            f"{path}: consecutive rows of one prompt number {min(sizes)} to {max(sizes)}, so the groups are unknown",
            remedy="give the run's rollouts per prompt as group",
            key="group",
            code="data.incomplete",
        )
    n = size or sizes[0]
    tokens = _tokens([_characters(text) for text in table["completion"].to_pylist()], mean_length)
    kept = _kept(path, table)
    for first in range(0, len(prompts), n):
        rows = slice(first, first + n)
        if len(prompts[rows]) != n or len(set(prompts[rows])) > 1:
            raise DataError(
                f"{path}: rows {first + 1} to {first + n} are not {n} rollouts of one prompt",
                remedy="give the run's rollouts per prompt as group, if the file is whole",
                key="group",
                code="data.malformed",
            )
        group = plain_group(prompts[first], rewards[rows], tokens=[np.zeros(0, np.int64)] * n)
        yield SampledGroup(group=group, kept=kept[rows], tokens=tokens[rows])


def _kept(path: Path, table: pa.Table) -> BoolArray:
    """[rows] whether the run trained on it: all of them, unless winnow_trl selected."""
    if KEPT not in table.column_names:
        return np.ones(len(table), dtype=np.bool_)
    kept = table[KEPT].to_pylist()
    if not all(isinstance(value, bool) for value in kept):
        raise _malformed(path, f"has a column {KEPT!r} that is no column of truth values")
    return np.array(kept, dtype=np.bool_)


def _tokens(characters: Sequence[int], mean_length: float) -> FloatArray:
    """[rows] estimates: the logged mean, divided among the rows in proportion to their characters."""
    counts = np.array(characters, dtype=np.float64)
    return counts * mean_length / counts.mean() if counts.any() else np.full(len(counts), mean_length)


def _key(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=repr)


def _characters(completion: Any) -> int:
    """The characters of a text, or of the contents of messages."""
    if isinstance(completion, str):
        return len(completion)
    contents = [message.get("content") or "" for message in completion or ()]
    return sum(len(content if isinstance(content, str) else json.dumps(content, default=repr)) for content in contents)


def _malformed(path: Path, problem: str) -> DataError:
    return DataError(f"{path} {problem}", remedy="restore it, or name another run", code="data.malformed")
