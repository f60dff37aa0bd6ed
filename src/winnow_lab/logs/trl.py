"""The log of a TRL GRPOTrainer: its tables of completions, and the metrics in its state.

    RUN/completions/completions_00005.parquet   with `log_completions=True`: a row per completion, one file per log
    RUN/trainer_state.json                      of `trainer.save_state()`, or
    RUN/checkpoint-500/trainer_state.json       of a checkpoint; the newest state is read

The table has the columns step, prompt, completion, one per reward function, those that the user's functions log, and
advantage; winnow_trl adds kept. Only the names of rewards in the state's metrics distinguish a reward from a column of
the user's. Neither file has lengths in tokens, weights of rewards, a seed, or the number of rollouts per prompt.
Written by TRL 1.16.0.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from winnow.errors import DataError, near_miss
from winnow.metrics import distinct
from winnow.records import BoolArray, FloatArray
from winnow.state.disk import errors_as
from winnow.state.foreign.log import (
    GROUP,
    SETTINGS,
    VERDICTS,
    WEIGHTS,
    ForeignGroup,
    ForeignLog,
    digest_of,
    estimated_lengths,
    listed,
    malformed,
    metric,
    written,
)

if TYPE_CHECKING:
    import pyarrow as pa

COMPLETIONS = "completions"
STATE = "trainer_state.json"
KEPT = "kept"  # the column of winnow_trl
OWN = ("step", "prompt", "completion", "advantage")
METRICS = {  # of a step -> winnow's
    "completions/mean_length": "rollout/length_mean",
    "completions/max_length": "rollout/length_max",
    "completions/clipped_ratio": "rollout/truncated",
    "entropy": "policy/entropy",
    "loss": "policy/loss",
    "grad_norm": "policy/grad_norm",
    "learning_rate": "policy/learning_rate",
    "clip_ratio/region_mean": "policy/clip_fraction",
    "kl": "loss/kl",
    "step_time": "seconds/step",
    "sampling/sampling_logp_difference/mean": "policy/logprob_gap_mean",
    "sampling/sampling_logp_difference/max": "policy/logprob_gap_max",
}
OF_WINNOW = {  # of winnow_trl -> winnow's: counts, where a table has estimates
    "budget/generated_tokens": "budget/tokens_generated",
    "budget/trained_tokens": "budget/tokens_trained",
}
EVALUATED = {  # of an evaluation -> winnow's
    "eval_reward": "eval/reward_mean",
    "eval_completions/mean_length": "eval/length_mean",
    "eval_completions/clipped_ratio": "eval/truncated",
    "eval_runtime": "eval/seconds",
}
KNOWN = (  # prefixes of TRL's other metrics, which are not named when they are not read
    "budget/", "clip_ratio/", "completions/", "eval_", "frac_reward_zero_std", "num_tokens", "reward", "sampling/",
    "step", "epoch", "tools/", "total_flos", "train_", "policy_loss",
)  # fmt: skip
_FILE = re.compile(r"completions_(\d{5,15})\.parquet")
_CHECKPOINT = re.compile(r"checkpoint-\d+")
_REWARD = re.compile(r"rewards/(.+)/mean")
_NEAR = 1e-3  # relative: rewards are float32 there, and means of means here
_LENGTH = "completions/mean_length"


@dataclass(frozen=True)
class TrainerState:
    """The metrics of a trainer_state.json."""

    path: Path
    rewards: tuple[str, ...]  # the names of the reward functions, in the order of the metrics
    rows: Mapping[int, Mapping[str, Any]]  # TRL's step -> the metrics of training
    evaluations: Mapping[int, Mapping[str, Any]]  # TRL's step -> those of an evaluation after it

    def metric(self, step: int, name: str) -> float:
        """A metric of a step of TRL; NaN where it was not logged."""
        return metric(self.path, f"step {step}", name, self.rows.get(step, {}).get(name))


class TrlLog(ForeignLog):
    """An output folder. Steps after the newest saved state are omitted."""

    program = "TRL"

    @classmethod
    def is_at(cls, path: Path) -> bool:
        return (path / COMPLETIONS).is_dir() or (path / STATE).is_file()

    @classmethod
    def folders_of(cls, path: Path) -> Iterable[Path]:
        return (path.parent.parent,) if path.parent.name == COMPLETIONS else ()

    @classmethod
    def step_of(cls, name: str) -> int | None:
        match = _FILE.fullmatch(name)
        return int(match[1]) - 1 if match and int(match[1]) > 0 else None

    def files(self) -> dict[int, Path]:
        tables, state = self._tables(), self._state()
        files = {step: path for step, path in tables.items() if step + 1 in state.rows}
        if not files:
            raise DataError(
                f"{state.path} has no metrics of any step in {self.path / COMPLETIONS}",
                remedy="name the output_dir of one run",
                code="data.mismatch",
            )
        return files

    def read(self, step: int) -> list[ForeignGroup]:
        state, path = self._state(), self.files()[step]
        return list(self._groups(path, _table(path, step + 1, state), state, state.metric(step + 1, _LENGTH)))

    def measured(self) -> dict[int, dict[str, float]]:
        state, files = self._state(), self.files()
        parts = dict(zip(state.rewards, distinct(state.rewards), strict=True))
        before = 0
        measured: dict[int, dict[str, float]] = {}
        for step, row in sorted(state.rows.items()):
            names = {**METRICS, **{f"rewards/{name}/mean": f"reward/part/{part}" for name, part in parts.items()}}
            whole = step - 1 in files and self._is_whole(state, step, files[step - 1])
            names |= OF_WINNOW if whole else {"reward": "reward/mean"}
            if step - 1 in files:
                own = {new: state.metric(step, name) for name, new in names.items() if name in row}
                measured.setdefault(step - 1, {}).update(own, **{"budget/updates": float(step - before)})
            before = step
        for step, row in state.evaluations.items():
            names = {**EVALUATED, **{f"eval_rewards/{name}/mean": f"eval/part/{part}" for name, part in parts.items()}}
            own = {
                new: metric(state.path, f"step {step}", name, row[name]) for name, new in names.items() if name in row
            }
            measured.setdefault(step, {}).update(own)
        return measured

    def notes(self) -> list[str]:
        tables, files, state = self._tables(), self.files(), self._state()
        columns = dict.fromkeys(name for path in files.values() for name in _columns(path))
        unread = [name for name in columns if name not in (*OWN, KEPT, *state.rewards)]
        known = (*METRICS, *OF_WINNOW, *EVALUATED)
        unknown = [n for row in state.rows.values() for n in row if n not in known and not n.startswith(KNOWN)]
        notes = [
            f"a log of TRL: step {min(files)} here is its step {min(files) + 1}. It has no token ids, and "
            f"does not show which completions were cut off",
            "lengths are estimated from characters and the logged mean length",
        ]
        if unread:
            notes.append(f"columns that are not rewards of this run, and are not read: {listed(unread)}")
        if unknown:
            notes.append(f"metrics that are not read: {listed(unknown)}")
        if late := [step + 1 for step in tables if step not in files]:
            notes.append(
                f"{len(late)} steps, {late[0]} to {late[-1]} of TRL, are omitted: the newest state, {state.path}, has "
                f"no metrics of them"
            )
        if lacking := [step for step in state.rows if step - 1 not in tables]:
            notes.append(
                f"{len(lacking)} steps, {lacking[0]} to {lacking[-1]} of TRL, have no table: their metrics are not read"
            )
        parts = 0
        for step, path in files.items():
            with suppress(DataError):  # refused, or left out, where the step is read
                parts += not self._is_whole(state, step + 1, path)
        if parts:
            notes.append(
                f"in {parts} steps the logged mean reward is that of more rollouts than the table has: TRL logs the "
                f"last generation of a step, or of `logging_steps` steps"
            )
        return notes

    def restoring(self, step: int) -> str:
        table = self.path / COMPLETIONS / f"completions_{step + 1:05}.parquet"
        return f"put {table} back (a run with logging_steps above 1 has a table of some steps only)"

    def _tables(self) -> dict[int, Path]:
        """step -> its table. Raises DataError if there is none."""
        folder = self.path / COMPLETIONS
        found: dict[int, Path] = {}
        with errors_as(DataError, f"cannot read {folder}", "make it readable", code="data.unreadable"):
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                step = self.step_of(path.name)
                if step in found:
                    raise malformed(path, f"and {found[step].name} are both of step {step + 1}")
                if step is not None:
                    found[step] = path
        if not found:
            raise DataError(
                f"{folder} contains no table of completions",
                remedy="train with GRPOConfig(log_completions=True), and name the output_dir",
                code="data.missing",
            )
        return dict(sorted(found.items()))

    def _state(self) -> TrainerState:
        """The newest state."""
        with errors_as(DataError, f"cannot read {self.path}", "make it readable", code="data.unreadable"):
            inner = [own for own in sorted(self.path.iterdir()) if own.is_dir() and _CHECKPOINT.fullmatch(own.name)]
            paths = [folder / STATE for folder in (self.path, *inner) if (folder / STATE).is_file()]
            states = [_read_state(path) for path in paths]
        if not states:
            raise DataError(
                f"{self.path} has no {STATE}, which names the rewards among the columns of the tables",
                remedy="call trainer.save_state() after training, or keep a checkpoint",
                code="data.missing",
            )
        return max(states, key=lambda state: max(state.rows, default=-1))

    def _weights(self, state: TrainerState) -> list[float]:
        """The weights of the rewards: those of the settings, or 1 each.

        Raises DataError if the logged rewards contradict them.
        """
        given = self.settings.reward_weights
        weights = [1.0] * len(state.rewards) if given is None else list(given)
        remedy = f"write the run's {WEIGHTS} into {self.path / SETTINGS}, such as {WEIGHTS} = {[1.0] * len(weights)}"
        if len(weights) != len(state.rewards):
            raise DataError(
                f"{self.path / SETTINGS} has {len(weights)} {WEIGHTS}, and the run has {len(state.rewards)} rewards: "
                f"{', '.join(state.rewards)}",
                remedy="give one for each",
                key=WEIGHTS,
                code="data.mismatch",
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
                    remedy=remedy,
                    key=WEIGHTS,
                    code="data.mismatch",
                )
        return weights

    def _is_whole(self, state: TrainerState, step: int, path: Path) -> bool:
        """Whether the logged mean reward of a step of TRL is that of its table; True where there is none of either."""
        rewards = _rewards(path, _table(path, step, state), state.rewards, self._weights(state))
        known = rewards[~np.isnan(rewards)]
        mean = float(known.mean()) if len(known) else math.nan
        return not abs(mean - state.metric(step, "reward")) > _NEAR * max(1.0, abs(mean))

    def _groups(self, path: Path, table: pa.Table, state: TrainerState, mean_length: float) -> Iterator[ForeignGroup]:
        """The groups: consecutive rows of one prompt, or as many as the settings name.

        Raises DataError if they are unequal.
        """
        rewards = _rewards(path, table, state.rewards, self._weights(state))
        prompts = [_text(prompt) for prompt in table["prompt"].to_pylist()]
        sizes = [len(list(same)) for _, same in itertools.groupby(prompts)]
        size = self.settings.rollouts_per_prompt
        if size is None and len(set(sizes)) > 1:
            raise DataError(
                f"{path}: consecutive rows of one prompt number {min(sizes)} to {max(sizes)}, and groups are equal",
                remedy=f"write the run's rollouts per prompt into {self.path / SETTINGS}, such as {GROUP} = 8",
                key=GROUP,
                code="data.incomplete",
            )
        n = size or sizes[0]
        texts = [_text(completion) for completion in table["completion"].to_pylist()]
        lengths = estimated_lengths([len(text) for text in texts], mean_length)
        kept, credit = _kept(path, table), _column(table, "advantage")
        parts = {name: _column(table, name) for name in state.rewards}
        for first in range(0, len(prompts), n):
            rows = slice(first, first + n)
            if len(prompts[rows]) != n or len(set(prompts[rows])) > 1:
                raise DataError(
                    f"{path}: rows {first + 1} to {first + n} are not {n} rollouts of one prompt",
                    remedy=f"correct {GROUP} in {self.path / SETTINGS}, if the file is whole",
                    key=GROUP,
                    code="data.malformed",
                )
            verdicts = self.settings.correct_by
            yield ForeignGroup(
                prompt_id=digest_of(prompts[first]),
                prompt=prompts[first],
                answer=None,
                texts=texts[rows],
                rewards=rewards[rows],
                parts=[{name: float(of[place]) for name, of in parts.items()} for place in range(first, first + n)],
                kept=kept[rows],
                advantages=credit[rows],
                lengths=lengths[rows],
                correct=None if verdicts is None else _verdicts(self.path, parts, verdicts)[rows],
            )


def _read_state(path: Path) -> TrainerState:
    return _parsed_state(path, written(path))


@functools.lru_cache(maxsize=16)
def _parsed_state(path: Path, when: tuple[int, ...]) -> TrainerState:
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise malformed(path, f"is no JSON ({error})") from error
    history = data.get("log_history") if isinstance(data, dict) else None
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
        raise malformed(path, "has no list of metrics, 'log_history'")
    of_steps = [row for row in history if isinstance(row.get("step"), int)]
    rows = {int(row["step"]): row for row in of_steps if "reward" in row}
    evaluations = {int(row["step"]): row for row in of_steps if "eval_reward" in row}
    names = dict.fromkeys(match[1] for row in rows.values() for key in row if (match := _REWARD.fullmatch(key)))
    if not names:
        raise malformed(path, "has no metrics 'rewards/NAME/mean', so it is not the state of a GRPOTrainer")
    return TrainerState(path, tuple(names), rows, evaluations)


def _table(path: Path, step: int, state: TrainerState) -> pa.Table:
    """The table of a step of TRL. Raises DataError if it is damaged, lacks a column, or is of another step."""
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
            raise malformed(path, f"has no {kind} {name!r}")
    if not len(table):
        raise malformed(path, "has no rows")
    for name in ("advantage", *state.rewards):
        if not (pa.types.is_floating(table[name].type) or pa.types.is_integer(table[name].type)):
            raise malformed(path, f"has a column {name!r} of type {table[name].type}, and not of numbers")
    steps = set(table["step"].to_pylist())
    if steps != {step}:
        raise malformed(path, f"has rows of the steps {', '.join(map(str, sorted(steps, key=str)))}")
    return table


def _columns(path: Path) -> list[str]:
    """The names of a table's columns; none of a damaged one, which is refused where it is read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with suppress(OSError, ValueError, pa.ArrowException):
        return list(pq.read_schema(path).names)
    return []


def _rewards(path: Path, table: pa.Table, names: Sequence[str], weights: Sequence[float]) -> FloatArray:
    """[rows] weighted sums; NaN where no function returned a reward. Raises DataError for an infinite reward."""
    parts = np.array([_column(table, name) for name in names], dtype=np.float64)
    if np.isinf(parts).any():
        raise malformed(path, "has a reward that is infinite")
    total = np.nansum(parts * np.array(weights)[:, None], axis=0)
    return np.asarray(np.where(np.isnan(parts).all(axis=0), np.nan, total), dtype=np.float64)


def _column(table: pa.Table, name: str) -> FloatArray:
    """[rows] numbers, NaN for null."""
    return np.array([math.nan if value is None else value for value in table[name].to_pylist()], dtype=np.float64)


def _kept(path: Path, table: pa.Table) -> BoolArray:
    """[rows] whether the run trained on it: all of them, unless winnow_trl selected."""
    if KEPT not in table.column_names:
        return np.ones(len(table), dtype=np.bool_)
    kept = table[KEPT].to_pylist()
    if not all(isinstance(value, bool) for value in kept):
        raise malformed(path, f"has a column {KEPT!r} that is no column of truth values")
    return np.array(kept, dtype=np.bool_)


def _verdicts(folder: Path, parts: Mapping[str, FloatArray], name: str) -> BoolArray:
    """[rows] whether the reward of this name is at least 1. Raises DataError if the run has no such reward."""
    if name not in parts:
        raise DataError(
            f"{folder / SETTINGS}: the run has no reward {name!r}",
            remedy=near_miss(name, parts),
            key=VERDICTS,
            code="data.mismatch",
        )
    return np.asarray(parts[name] >= 1.0, dtype=np.bool_)


def _text(value: Any) -> str:
    """A prompt or a completion: a text, the content of its only message, or messages after the names of their roles."""
    if isinstance(value, str):
        return value
    messages = [message if isinstance(message, dict) else {"content": message} for message in value or ()]
    contents = [(message.get("role"), message.get("content") or "") for message in messages]
    texts = [(role, text if isinstance(text, str) else json.dumps(text, default=repr)) for role, text in contents]
    return texts[0][1] if len(texts) == 1 else "\n".join(f"{role}: {text}" for role, text in texts)
