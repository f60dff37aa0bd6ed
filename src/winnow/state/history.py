"""The results of a run's prompts so far, and the plan: which prompts the next steps take, and how many rollouts each.

A sampler reads `table` and an allocator `stats`; `record_draw` and `record_plan` store their results. A training step
only reads `drawn` and `plan`. In a checkpoint, their arrays are the bytes of the numbers in base64, as a hundred
thousand numbers then need milliseconds. This module imports no torch.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from winnow.budget.pass_rates import rates
from winnow.budget.sampling import PromptTable
from winnow.records import Draw, FloatArray, Group, IntArray, Prompt, PromptStats, packed, unpacked

# The columns of a table in a checkpoint, with the type of their numbers there. All of them are read at every save, so
# they are few and small: a streak is all_right, or -all_wrong.
COLUMNS = {
    "trials": "<f8",
    "correct": "<f8",
    "latest_trials": "<i4",
    "latest_correct": "<i4",
    "streak": "<i4",
    "drawn_at": "<i4",
}
NORMS = "gradient_norm"  # a further column of "<f8", where one was measured
BYTES = "base64"


class Probed(NamedTuple):
    """The results of one prompt in a probe."""

    verified: float = 0.0  # rollouts with a verdict
    correct: float = 0.0  # of these, correct
    gradient_norm: float | None = None  # None where no rollout was correct, or none was measured


class Planned(NamedTuple):
    """The plan for one prompt."""

    rollouts: int  # to generate
    pass_rate: float | None  # the estimate that the count is based on; None without one


class History:
    """The results of every prompt, the draws and the current plan; a resume restores all of them from `state_dict`.

    `ids` are those of the run's prompts, in the order of the task. A prompt is a row of the table of results, which has
    this order. The table is stored only with `remember`, for a member that reads it.

    The results of a probe are separate from those of training. They were measured with the same weights for all prompts
    of a plan, and the next probe replaces them.
    """

    def __init__(
        self, ids: Sequence[str], *, decay: float = 1.0, remember: bool = True, difficulty: FloatArray | None = None
    ) -> None:
        self._ids = tuple(ids)
        self._rows = {name: row for row, name in enumerate(self._ids)}
        self._decay = decay
        self._remember = remember
        self.table = PromptTable.empty(len(self._ids), difficulty)  # the results of training, which a sampler reads
        self.sampler: Mapping[str, Any] = {}  # the sampler's state; {} before the first draw
        self._drawn: Mapping[int, tuple[IntArray, ...]] = {}  # of each planned step: its prompts, then further rounds
        self._counted: Mapping[int, Mapping[str, float]] = {}  # of the first step of a draw: its metrics
        self._chances: Mapping[int, FloatArray] = {}  # of each planned step: the probabilities of its prompts
        self._probed: dict[str, Probed] = {}
        self._plan: dict[str, Planned] = {}

    def stats(self, prompts: Sequence[Prompt]) -> PromptStats:
        """The results of training for G prompts: NaN and 0 trials for a prompt that was never verified."""
        rows = self._rows_of(prompts)
        trials, correct = self.table.trials[rows], self.table.correct[rows]
        return _stats(prompts, trials, correct, self.table.gradient_norm[rows])

    def probed(self, prompts: Sequence[Prompt]) -> PromptStats:
        """The results of the last probe for G prompts."""
        known = [self._probed.get(prompt.id, Probed()) for prompt in prompts]
        # NaN in the place of None
        trials, correct, norm = np.array(known, dtype=np.float64).reshape(-1, len(Probed._fields)).T.copy()
        return _stats(prompts, trials, correct, norm)

    def observe(self, groups: Sequence[Group], gradient_norms: FloatArray | None = None) -> None:
        """Add the verdicts of a step (without failed ones), and [G] gradient norms where they were measured."""
        if not self._remember:
            return
        norms = np.full(len(groups), np.nan) if gradient_norms is None else np.asarray(gradient_norms)
        self.table = self.table.observed(
            self._rows_of([group.prompt for group in groups]),
            np.array([group.valid.sum() for group in groups], dtype=np.int64),
            np.array([group.correct.sum() for group in groups], dtype=np.int64),
            norms,
            decay=self._decay,
        )

    def snapshot(self) -> History:
        """A copy that later observations, draws and plans do not change."""
        return copy.copy(self)  # shallow is enough: tables and arrays are replaced, never modified

    def record_probe(self, groups: Sequence[Group], gradient_norms: FloatArray | None = None) -> None:
        """Replace the results of the last probe."""
        norms = np.full(len(groups), np.nan) if gradient_norms is None else np.asarray(gradient_norms)
        self._probed = {
            group.prompt.id: _probed(group, norm)
            for group, norm in zip(groups, norms.tolist(), strict=True)
            if group.rollouts
        }

    def record_draw(
        self,
        steps: Sequence[int],
        rows: Sequence[IntArray],
        further: Sequence[Sequence[IntArray]],
        state: Mapping[str, Any],
        metrics: Mapping[str, float],
        chances: Sequence[FloatArray] | None = None,
    ) -> None:
        """Replace the draws: for each of the steps its `rows` of the table, and the rows of `further` rounds, which
        dynamic sampling may add. `state` is the sampler's next state, and `metrics` are those of the draw. `chances`
        are, for each of the steps, the probabilities with which it has its rows; None: unknown, or equal.
        """
        self._drawn = {step: (of_step, *rounds) for step, of_step, rounds in zip(steps, rows, further, strict=True)}
        self._counted = {steps[0]: dict(metrics)} if metrics else {}
        self._chances = {} if chances is None else dict(zip(steps, chances, strict=True))
        self.sampler = dict(state)
        if self._remember:
            self.table = self.table.drawn(np.concatenate(rows))

    def has_draw(self, step: int, count: int | None = None) -> bool:
        """Whether prompts are drawn for a step; with `count`, whether so many are."""
        return step in self._drawn and count in (None, len(self._drawn[step][0]))

    def drawn(self, step: int, *, extra: int = 0) -> IntArray:
        """[G] rows of the prompts of a step; with `extra` = n those of its n-th round of dynamic sampling, which may be
        fewer or none. Raises ValueError for a step without a draw.
        """
        if step not in self._drawn:
            raise ValueError(f"step {step}: its prompts are not drawn; record a draw first")
        rounds = self._drawn[step]
        return rounds[extra] if extra < len(rounds) else rounds[0][:0]

    def draws(self, step: int) -> list[Draw] | None:
        """[G] how each prompt of a step was drawn; None where no probability is known, or all are equal."""
        chances = self._chances.get(step)
        return None if chances is None else [Draw(chance, len(self._ids)) for chance in chances.tolist()]

    def draw_metrics(self, step: int) -> Mapping[str, float]:
        """The metrics of the draw that begins with a step; none for another step."""
        return self._counted.get(step, {})

    def record_plan(self, prompts: Sequence[Prompt], counts: IntArray, pass_rates: FloatArray) -> None:
        """Replace the plan: [G] rollouts per prompt and the [G] pass rates (NaN: unknown) that they are based on."""
        self._plan = {
            prompt.id: Planned(rollouts=int(count), pass_rate=None if math.isnan(rate) else float(rate))
            for prompt, count, rate in zip(prompts, counts, pass_rates, strict=True)
        }

    def has_plan(self, prompts: Sequence[Prompt]) -> bool:
        """Whether each of these prompts is in the plan."""
        return all(prompt.id in self._plan for prompt in prompts)

    def plan(self, prompts: Sequence[Prompt], step: int) -> IntArray:
        """[G] rollouts to generate for the prompts of a step. Raises ValueError for a prompt outside the plan."""
        for prompt in prompts:
            if prompt.id not in self._plan:
                raise ValueError(f"step {step}: prompt {prompt.id!r} has no planned count; record a plan first")
        return np.array([self._plan[prompt.id].rollouts for prompt in prompts], dtype=np.int64)

    def planned_pass_rates(self, prompts: Sequence[Prompt]) -> FloatArray:
        """[G] the pass rates that the plan is based on; NaN where unknown, and for prompts outside the plan."""
        planned = [self._plan.get(prompt.id) for prompt in prompts]
        return np.array([math.nan if p is None or p.pass_rate is None else p.pass_rate for p in planned])

    def state_dict(self) -> dict[str, Any]:
        """The state as JSON. The table "seen" has the prompts that were drawn or visited, column by column; a prompt is
        named by 64 bits of a hash of its id. Its results in a probe are [verified, correct, gradient norm], its plan is
        [count, rate].
        """
        return {
            "prompts": self._digest,
            "seen": self._packed_table(),
            "sampler": packed_values(self.sampler),
            "drawn": {str(step): [of.tolist() for of in rounds] for step, rounds in self._drawn.items()},
            "drawn_metrics": {str(step): dict(of) for step, of in self._counted.items()},
            "drawn_chances": {str(step): packed(of, "<f8") for step, of in self._chances.items()},
            "probed": dict(self._probed),
            "plan": dict(self._plan),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Where the task has other prompts now, which a resume allows only knowingly, results are restored by the ids of
        the prompts. The sampler then starts anew, and what was drawn is drawn again.
        """
        same = state["prompts"] == self._digest
        self._load_table(state["seen"], same=same)
        self.sampler = unpacked_values(state["sampler"]) if same else {}
        drawn = state["drawn"] if same else {}
        self._drawn = {int(step): tuple(_as_rows(of) for of in rounds) for step, rounds in drawn.items()}
        self._counted = {int(step): dict(of) for step, of in state["drawn_metrics"].items()} if same else {}
        self._chances = {int(step): unpacked(of, "<f8") for step, of in state["drawn_chances"].items()} if same else {}
        self._probed = {name: Probed(*of) for name, of in state["probed"].items()}
        self._plan = {name: Planned(*of) for name, of in state["plan"].items()}

    @functools.cached_property
    def _digest(self) -> str:
        """Of the ids of all prompts, in their order."""
        return hashlib.sha256("\0".join(self._ids).encode(errors="surrogatepass")).hexdigest()

    @functools.cached_property
    def _hashes(self) -> IntArray:
        """[P] 64 bits of a hash of each id: a tenth of a checkpoint with the ids themselves."""
        each = (hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest() for name in self._ids)
        return np.frombuffer(b"".join(each), dtype="<i8").astype(np.int64)

    def _packed_table(self) -> dict[str, Any]:
        table = self.table
        known = np.flatnonzero((table.drawn_at >= 0) | (table.trials > 0) | (table.latest_trials > 0))
        if not len(known):
            return {}
        every = {**vars(table), "streak": table.all_right - table.all_wrong}
        columns = {name: packed(every[name][known], dtype) for name, dtype in COLUMNS.items()}
        if not np.isnan(table.gradient_norm).all():
            columns[NORMS] = packed(table.gradient_norm[known], "<f8")
        newest = np.searchsorted(known, table.newest)  # places in the columns
        return {
            "prompts": packed(self._hashes[known], "<i8"),
            "rows": packed(known, "<i4"),
            **columns,
            "draws": table.draws,
            "newest": newest.tolist(),
        }

    def _load_table(self, saved: Mapping[str, Any], *, same: bool) -> None:
        empty = PromptTable.empty(len(self._ids), self.table.difficulty)
        self.table = empty
        if not saved or not self._remember:
            return
        rows = unpacked(saved["rows"], "<i4") if same else self._rows_of_hashes(unpacked(saved["prompts"], "<i8"))
        places = np.flatnonzero(rows >= 0)

        def column(name: str, dtype: str, unknown: Any) -> Any:
            values = unknown.copy()
            if name in saved:
                values[rows[places]] = unpacked(saved[name], dtype)[places]
            return values

        loaded = {name: column(name, dtype, getattr(empty, name, empty.all_right)) for name, dtype in COLUMNS.items()}
        streak = loaded.pop("streak")
        newest = rows[_as_rows(saved["newest"])]
        self.table = PromptTable(
            **(loaded if same else {**loaded, "drawn_at": empty.drawn_at}),  # else the clock of the draws starts anew
            draws=saved["draws"] if same else 0,
            difficulty=empty.difficulty,
            gradient_norm=column(NORMS, "<f8", empty.gradient_norm),
            all_right=np.maximum(streak, 0),
            all_wrong=np.maximum(-streak, 0),
            newest=np.sort(newest[newest >= 0]),
        )

    def _rows_of_hashes(self, hashes: IntArray) -> IntArray:
        """[K] rows of the prompts with these hashes; -1 for a prompt that the task does not have."""
        row_of = dict(zip(self._hashes.tolist(), range(len(self._ids)), strict=True))
        return _as_rows([row_of.get(value, -1) for value in hashes.tolist()])

    def _rows_of(self, prompts: Sequence[Prompt]) -> IntArray:
        return _as_rows([self._rows[prompt.id] for prompt in prompts])


def _as_rows(rows: Sequence[int]) -> IntArray:
    return np.array(rows, dtype=np.int64)


def _probed(group: Group, gradient_norm: float) -> Probed:
    correct = float(group.correct.sum())
    measured = correct > 0 and not math.isnan(gradient_norm)
    return Probed(float(group.valid.sum()), correct, gradient_norm if measured else None)


def _stats(prompts: Sequence[Prompt], trials: FloatArray, correct: FloatArray, norm: FloatArray) -> PromptStats:
    return PromptStats(
        ids=tuple(prompt.id for prompt in prompts),
        pass_rate=rates(correct, trials),
        gradient_norm=norm,
        trials=trials,
        correct=correct,
    )


def packed_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping of texts to JSON values and arrays [n] of integers or floats, as JSON. Raises ValueError for any other
    array, because another one would be restored.
    """
    plain: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            if value.ndim != 1 or value.dtype.kind not in "iuf":
                raise ValueError(f"{name!r} as {value.dtype} of shape {value.shape}")
            dtype = "<i8" if np.issubdtype(value.dtype, np.integer) else "<f8"
            plain[name] = {"dtype": dtype, BYTES: packed(value, dtype)}
        else:
            plain[name] = value.item() if isinstance(value, np.generic) else value
    return plain


def unpacked_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """What was given to `packed_values`."""
    return {
        name: unpacked(value[BYTES], value["dtype"]) if isinstance(value, Mapping) and BYTES in value else value
        for name, value in values.items()
    }
