"""The log of a TRL GRPOTrainer: its tables of completions, and the metrics in its state.

    RUN/completions/completions_00005.parquet   with `log_completions=True`: a row per completion, one file per log
    RUN/trainer_state.json                      of `trainer.save_state()`, or
    RUN/checkpoint-500/trainer_state.json       of a checkpoint; the newest state is read

Only the names of rewards in the state's metrics distinguish a reward from a column of the user's. Neither file has
lengths in tokens, weights of rewards, a seed, or the number of rollouts per prompt.

TRL writes the table of a step again when it evaluates after the step, with the completions of the evaluation, and with
some of training where the evaluation is smaller than a generation batch. Such a table is not read. The number of its
rows is that of a generation batch all the same, because TRL keeps as many rows as that.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from winnow.errors import DataError, near_miss
from winnow.metrics import distinct
from winnow.records import BoolArray, FloatArray
from winnow.state.disk import errors_as
from winnow.state.foreign_log import GROUP, SETTINGS, VERDICTS, WEIGHTS, ForeignGroup, ForeignLog, listed, spent
from winnow_lab.logs.reading import digest_of, estimated_lengths, malformed, metric
from winnow_lab.logs.trl_files import (
    COMPLETIONS,
    KEPT,
    OWN,
    STATE,
    TrainerState,
    column,
    column_names,
    count_rows,
    is_marked,
    is_near,
    is_of_evaluation,
    is_whole,
    kept_of,
    mean_of,
    newest_state,
    omits_rewards,
    read_table,
    sums_of,
    text_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

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
EVALUATED = {  # of an evaluation -> winnow's, after "eval/"
    "eval_reward": "reward_mean",
    "eval_completions/mean_length": "length_mean",
    "eval_completions/clipped_ratio": "truncated",
    "eval_runtime": "seconds",
}
KNOWN = (  # prefixes of TRL's other metrics, which are not named when they are not read
    "budget/", "clip_ratio/", "completions/", "eval_", "frac_reward_zero_std", "num_tokens", "reward", "sampling/",
    "step", "epoch", "tools/", "total_flos", "train_", "policy_loss",
)  # fmt: skip
_FILE = re.compile(r"completions_(\d{5,15})\.parquet")
_LENGTH = "completions/mean_length"


class TrlLog(ForeignLog):
    """An output folder. Steps after the newest saved state are omitted."""

    program = "TRL"
    names = "completions/completions_00005.parquet and trainer_state.json"
    above = 1

    @classmethod
    def is_at(cls, path: Path) -> bool:
        return (path / COMPLETIONS).is_dir() or (path / STATE).is_file()

    @classmethod
    def step_of(cls, path: Path) -> int | None:
        match = _FILE.fullmatch(path.name) if path.parent.name == COMPLETIONS else None
        return int(match[1]) - 1 if match and int(match[1]) > 0 else None

    def files(self) -> dict[int, Path]:
        """Without the tables that an evaluation was written over; there may be none left."""
        tables, state = self._tables(), newest_state(self.path)
        files = {step: path for step, path in tables.items() if step + 1 in state.rows}
        if not files:
            raise DataError(
                f"{state.path} has no metrics of any step in {self.path / COMPLETIONS}",
                remedy="name the output_dir of one run",
                code="data.mismatch",
            )
        evaluated = self._evaluated(tables, state)
        return {step: path for step, path in files.items() if step not in evaluated}

    def read(self, step: int) -> list[ForeignGroup]:
        state, path = newest_state(self.path), self.files()[step]
        return list(self._groups(path, read_table(path, step + 1, state.rewards), state, step + 1))

    def measured(self) -> dict[int, dict[str, float]]:
        state, tables = newest_state(self.path), self._tables()
        evaluated = self._evaluated(tables, state)
        parts = dict(zip(state.rewards, distinct(state.rewards), strict=True))
        before = 0
        measured: dict[int, dict[str, float]] = {}
        for step, row in sorted(state.rows.items()):
            names = {**METRICS, **{f"rewards/{name}/mean": f"reward/part/{part}" for name, part in parts.items()}}
            if step - 1 in tables:
                lost = step - 1 in evaluated
                whole = not lost and is_whole(tables[step - 1], state, step)
                names |= OF_WINNOW if whole else {"reward": "reward/mean"}
                own = {new: state.metric(step, name) for name, new in names.items() if name in row}
                if own.keys() >= set(OF_WINNOW.values()):
                    own |= spent(*(own[name] for name in OF_WINNOW.values()))
                counted = _counted(state, step, tables[step - 1]) if lost else {}
                measured.setdefault(step - 1, {}).update(counted, **own, **{"budget/updates": float(step - before)})
            before = step
        sets = list(dict.fromkeys(name for rows in state.evaluations.values() for name in rows))
        tasks = dict(zip(sets, distinct(sets), strict=True)) if len(sets) > 1 else dict.fromkeys(sets, "")
        for step, rows in state.evaluations.items():
            for name, row in rows.items():
                own = _evaluation(state.path, step, name, row, parts)
                prefix = f"eval/{tasks[name]}/" if tasks[name] else "eval/"
                of_step = measured.setdefault(step, {})
                if "seconds" in own:
                    of_step["eval/seconds"] = of_step.get("eval/seconds", 0.0) + own.pop("seconds")
                of_step.update({prefix + key: value for key, value in own.items()})
        return measured

    def notes(self) -> list[str]:
        tables, state = self._tables(), newest_state(self.path)
        files = self.files()
        first = min(files, default=min(tables))
        notes = [
            f"a log of TRL: step {first} here is its step {first + 1}. It has no token ids, and does not show which "
            f"completions were cut off",
            "lengths are estimated from characters and the logged mean length",
        ]
        evaluated = self._evaluated(tables, state)
        if evaluated:
            names = listed(tables[step].name for step in sorted(evaluated))
            notes.append(
                f"left out, because TRL wrote completions of an evaluation over those of training: {names}. Of these "
                f"steps, only the metrics are read"
            )
        columns = dict.fromkeys(name for path in files.values() for name in column_names(path))
        if unread := [name for name in columns if name not in (*OWN, KEPT, *state.rewards)]:
            notes.append(f"columns that are not rewards of this run, and are not read: {listed(unread)}")
        known = (*METRICS, *OF_WINNOW, *EVALUATED)
        unknown = [n for row in state.rows.values() for n in row if n not in known and not n.startswith(KNOWN)]
        if unknown:
            notes.append(f"metrics that are not read: {listed(unknown)}")
        return [*notes, *self._notes_on_steps(tables, evaluated, state)]

    def _notes_on_steps(
        self, tables: Mapping[int, Path], evaluated: Collection[int], state: TrainerState
    ) -> Iterator[str]:
        if late := [step + 1 for step in tables if step + 1 not in state.rows and step not in evaluated]:
            yield (
                f"{len(late)} steps, {late[0]} to {late[-1]} of TRL, are omitted: the newest state, {state.path}, has "
                f"no metrics of them"
            )
        if lacking := [step for step in state.rows if step - 1 not in tables]:
            yield (
                f"{len(lacking)} steps, {lacking[0]} to {lacking[-1]} of TRL, have no table: their metrics are not read"
            )
        parts = 0
        for step, path in self.files().items():
            with suppress(DataError):  # refused, or left out, where the step is read
                parts += not is_whole(path, state, step + 1)
        if parts:
            yield (
                f"in {parts} steps the logged mean reward is that of more rollouts than the table has: TRL logs the "
                f"last generation of a step, or of `logging_steps` steps"
            )

    def absence(self, step: int | None) -> tuple[str, str]:
        why = "completions of an evaluation, which TRL writes over those of training"
        if step is None:
            remedy = "train with eval_steps above logging_steps, or read the metrics (winnow plot, compare, report)"
            return f"every table contains {why}", remedy
        if step in self._evaluated(self._tables(), newest_state(self.path)):
            return f"its table contains {why}", "name another step"
        return super().absence(step)

    def restoring(self, step: int) -> str:
        table = self.path / COMPLETIONS / f"completions_{step + 1:05}.parquet"
        if table.exists():  # the rollouts of an earlier step again
            return "compare runs that generate rollouts in every step (TRL's num_iterations and steps_per_generation)"
        return f"put {table} back (a run with logging_steps above 1 has a table of some steps only)"

    def _tables(self) -> dict[int, Path]:
        """step -> its table. Raises DataError if there is none."""
        folder = self.path / COMPLETIONS
        found: dict[int, Path] = {}
        with errors_as(DataError, f"cannot read {folder}", "make it readable", code="data.unreadable"):
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                step = self.step_of(path)
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

    def _evaluated(self, tables: Mapping[int, Path], state: TrainerState) -> set[int]:
        """The steps whose tables contain completions of an evaluation."""
        found = {step for step in tables if step + 1 in state.evaluations}
        before = 0
        for step in sorted(state.rows):
            between = [k for k in state.evaluations if before < k < step]
            earlier = tables.get(max(between) - 1) if between else None
            if step - 1 in tables and earlier is not None and is_of_evaluation(tables[step - 1], earlier):
                found.add(step - 1)
            before = step
        return found | self._evaluated_last(tables, state, found)

    def _evaluated_last(self, tables: Mapping[int, Path], state: TrainerState, found: Collection[int]) -> set[int]:
        """The last step of training if it was evaluated after the state was saved: its rows are marked, or their mean
        rewards are not the logged ones, though the step before is whole.
        """
        last = max(state.rows)
        if last - 1 not in tables or last - 1 in found:
            return set()
        marked = is_marked(tables[last - 1])
        if not marked and last - 1 in state.rows and last - 2 in tables and last - 2 not in found:
            with suppress(DataError):  # a damaged table is refused if it is read
                whole = is_whole(tables[last - 2], state, last - 1)
                marked = whole and not is_whole(tables[last - 1], state, last)
        return {last - 1} if marked else set()

    def _weights(self, state: TrainerState) -> dict[str, float]:
        """The weight of each reward: those of the settings, or 1 each. Raises DataError unless they name each."""
        given = self.settings.reward_weights
        if given is None:
            return dict.fromkeys(state.rewards, 1.0)
        place = self.path / SETTINGS
        for name in given:
            if name not in state.rewards:
                raise DataError(
                    f"{place}: the run has no reward {name!r}",
                    remedy=near_miss(name, state.rewards),
                    key=WEIGHTS,
                    code="data.mismatch",
                )
        if missing := [name for name in state.rewards if name not in given]:
            raise DataError(
                f"{place}: {WEIGHTS} has no weight of {', '.join(missing)}",
                remedy="name every reward of the run, with 0 for one that does not count",
                key=WEIGHTS,
                code="data.mismatch",
            )
        return {name: given[name] for name in state.rewards}

    def _sums(self, path: Path, table: pa.Table, state: TrainerState, step: int) -> FloatArray:
        """[rows] rewards. Raises DataError if the logged mean reward contradicts their weights."""
        weights = self._weights(state)
        rewards, total = sums_of(table, weights), state.metric(step, "reward")
        whole = is_whole(path, state, step)
        mean = mean_of(rewards) if whole else sum(weight * state.part(step, name) for name, weight in weights.items())
        agree = math.isnan(total) or math.isnan(mean) or is_near(mean, total)
        if not agree and (whole or not self._omits_rewards(state)):
            raise DataError(
                f"{state.path}, step {step}: the mean reward is {total:g}, and {mean:g} with the weights "
                f"{', '.join(f'{name} = {weight:g}' for name, weight in weights.items())}",
                remedy=f"write the run's {WEIGHTS} into {self.path / SETTINGS}, {self._fitting(state)}",
                key=WEIGHTS,
                code="data.mismatch",
            )
        return rewards

    def _omits_rewards(self, state: TrainerState) -> bool:
        """Whether a function returned None for a row of some table: so it may have for rollouts that no table has."""
        for at, path in self.files().items():
            with suppress(DataError):  # a damaged table is refused if it is read
                if omits_rewards(path, state, at + 1):
                    return True
        return False

    def _fitting(self, state: TrainerState) -> str:
        """The line of the weights that fit every whole table; their form alone if no weights do, or several.

        TRL's mean reward is linear in the weights: a reward that a function did not return is 0 in a row's sum.
        """
        means, totals = list[list[float]](), list[float]()
        for at, path in self.files().items():
            with suppress(DataError):
                table = read_table(path, at + 1, state.rewards)
                parts = np.array([column(table, name) for name in state.rewards])
                judged = parts[:, ~np.isnan(parts).all(axis=0)]
                if is_whole(path, state, at + 1) and judged.size:
                    means.append(np.nan_to_num(judged).mean(axis=1).tolist())
                    totals.append(state.metric(at + 1, "reward"))
        form = "{ " + ", ".join(f"{name!r} = ..." for name in state.rewards).replace("'", '"') + " }"
        if len(means) < len(state.rewards) or np.linalg.matrix_rank(means, tol=1e-4) < len(state.rewards):
            return f"as {WEIGHTS} = {form}"
        fitted = [
            round(float(weight), 3) for weight in np.linalg.lstsq(np.array(means), np.array(totals), rcond=None)[0]
        ]
        if not np.allclose(np.array(means) @ np.array(fitted), totals, rtol=1e-3, atol=1e-3):
            return f"as {WEIGHTS} = {form}"
        named = ", ".join(f'"{name}" = {weight:g}' for name, weight in zip(state.rewards, fitted, strict=True))
        return f"which fit the log as {WEIGHTS} = {{ {named} }}"

    def _groups(self, path: Path, table: pa.Table, state: TrainerState, step: int) -> Iterator[ForeignGroup]:
        """The groups: consecutive rows of one prompt, or as many as the settings name."""
        rewards = self._sums(path, table, state, step)
        prompts = [text_of(prompt) for prompt in table["prompt"].to_pylist()]
        texts = [text_of(completion) for completion in table["completion"].to_pylist()]
        lengths = estimated_lengths([len(text) for text in texts], state.metric(step, _LENGTH))
        kept, credit = kept_of(path, table), column(table, "advantage")
        parts = {name: column(table, name) for name in state.rewards}
        for rows in self._places(path, prompts):
            yield ForeignGroup(
                prompt_id=digest_of(prompts[rows.start]),
                prompt=prompts[rows.start],
                answer=None,
                texts=texts[rows],
                rewards=rewards[rows],
                parts=[
                    {name: float(of[place]) for name, of in parts.items() if not math.isnan(of[place])}
                    for place in range(rows.start, rows.stop)
                ],
                kept=kept[rows],
                advantages=credit[rows],
                lengths=lengths[rows],
                correct=self._verdicts(parts, rows),
            )

    def _places(self, path: Path, prompts: list[str]) -> Iterator[slice]:
        """The rows of each group. Raises DataError if the groups are unequal."""
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
        for first in range(0, len(prompts), n):
            rows = slice(first, first + n)
            if len(prompts[rows]) != n or len(set(prompts[rows])) > 1:
                raise DataError(
                    f"{path}: rows {first + 1} to {first + n} are not {n} rollouts of one prompt",
                    remedy=f"correct {GROUP} in {self.path / SETTINGS}, if the file is whole",
                    key=GROUP,
                    code="data.malformed",
                )
            yield rows

    def _verdicts(self, parts: Mapping[str, FloatArray], rows: slice) -> BoolArray | None:
        """[rows] whether the reward that the settings name is at least 1; None without one, and for a group in which
        its function returned None. Raises DataError if the run has no such reward.
        """
        name = self.settings.correct_by
        if name is None:
            return None
        if name not in parts:
            raise DataError(
                f"{self.path / SETTINGS}: the run has no reward {name!r}",
                remedy=near_miss(name, parts),
                key=VERDICTS,
                code="data.mismatch",
            )
        own = parts[name][rows]
        return None if np.isnan(own).any() else np.asarray(own >= 1.0, dtype=np.bool_)


def _counted(state: TrainerState, step: int, path: Path) -> dict[str, float]:
    """What the state and the number of rows show of a generation batch whose table is lost."""
    rows = count_rows(path)
    share = state.metric(step, "budget/share_kept")
    kept = float(rows) if math.isnan(share) else round(rows * share, 6)
    generated = rows * state.metric(step, _LENGTH)
    trained = generated
    if "budget/generated_tokens" in state.rows[step]:
        generated, trained = (state.metric(step, f"budget/{name}_tokens") for name in ("generated", "trained"))
    tokens = {} if math.isnan(generated) else spent(generated, trained)
    return {"budget/rollouts": float(rows), "select/kept": kept, "select/trained": kept, **tokens}


def _evaluation(
    path: Path, step: int, name: str, row: Mapping[str, object], parts: Mapping[str, str]
) -> dict[str, float]:
    """The metrics of an evaluation of one data set, by winnow's names after "eval/"."""
    names = {**EVALUATED, **{f"eval_rewards/{reward}/mean": f"part/{part}" for reward, part in parts.items()}}
    if name:
        names[f"eval_{name}_runtime"] = names.pop("eval_runtime")
    return {new: metric(path, f"step {step}", old, row[old]) for old, new in names.items() if old in row}
