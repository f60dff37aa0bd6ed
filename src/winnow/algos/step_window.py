"""A window of steps as the planner reads it: rewards by group, and tokens and seconds by step.

`winnow plan` reads one from a log, and a run with `plan.use = "auto"` collects its own. Means over the steps, and over
steps and groups that count several times, are the statistics that winnow.algos.step_plan takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from winnow.algos.costs import JUDGED, ONCE, SAMPLED, TRAINED, MeasuredWork, StepCosts, StepWork, measured_costs
from winnow.algos.reward_mixture import Levels, RewardAtoms, RewardMixture, atoms_of, base_of, levels_of
from winnow.algos.step_plan import StepStatistics
from winnow.records import BoolArray, FloatArray, IntArray

PHASES = ("generate", "verify", "select", "logprobs", "update", "sync")  # all phases of a step except saving
COUNTS = ("group/count", "budget/rollouts", "budget/tokens_generated", "select/trained", "budget/tokens_trained")
WHOLE, SAVING = "seconds/step", "seconds/save"
COLUMNS = (*COUNTS, *(f"seconds/{name}" for name in PHASES), WHOLE, SAVING)


@dataclass(frozen=True, eq=False, kw_only=True)
class StepWindow:
    """Steps with the rewards of their groups."""

    steps: IntArray  # [S]
    levels: Levels
    atoms: RewardAtoms
    counts: IntArray  # [G, L] verified rollouts of each group by the level of their reward
    flat: BoolArray  # [G] whether all rewards of a group are equal, before they are reduced to levels
    rows: Mapping[str, FloatArray]  # [S] COLUMNS of each step; NaN for a number that is not logged
    grad_norm: FloatArray  # [S] NaN where it is not logged
    lasting: FloatArray  # [T] the share of rollouts longer than t = 0 ... T - 1 tokens; empty if lengths are not logged
    epochs: int

    @staticmethod
    def counted(
        groups: Sequence[FloatArray], known: RewardAtoms | None = None
    ) -> tuple[Levels, RewardAtoms, IntArray, BoolArray]:
        """Levels, atoms, counts and flatness of [G] groups of rewards. `known` atoms are used again if they fit.

        Raises ValueError if all rewards are equal.
        """
        levels = levels_of(groups)
        counts = np.array([levels.counts(rewards) for rewards in groups])
        base = base_of(counts) if len(levels.values) > 2 else None
        same = known is not None and base is None and np.array_equal(known.values, levels.values)
        atoms = known if same and known is not None else atoms_of(levels.values, base)
        return levels, atoms, counts, np.array([np.ptp(rewards) == 0 for rewards in groups], dtype=np.bool_)

    @property
    def has_tokens(self) -> bool:
        """Whether the tokens of a step are logged or estimated."""
        return all(bool(np.isfinite(self.rows[name]).any()) for name in COUNTS[1:])

    @property
    def has_phases(self) -> bool:
        """Whether the seconds of sampling and of the update are logged."""
        return all(bool(np.isfinite(self.rows[f"seconds/{name}"]).any()) for name in ("generate", "update"))

    @property
    def has_seconds(self) -> bool:
        """Whether the seconds of a whole step are logged."""
        return bool(np.isfinite(self.rows[WHOLE]).any())

    def statistics(
        self, groups: FloatArray | None = None, steps: FloatArray | None = None, *, near: RewardMixture | None = None
    ) -> StepStatistics:
        """Means, with the g-th group counted groups[g] times and the s-th step steps[s] times; once by default. `near`
        is the mixture without repetitions.
        """
        of_step = np.ones(len(self.steps)) if steps is None else steps
        of_group = np.ones(len(self.counts)) if groups is None else groups
        means = {name: _mean(values, of_step) for name, values in self.rows.items()}
        prompts, rollouts, generated, trained, tokens = (means[name] for name in COUNTS)
        work = StepWork(
            prompts=max(1, round(prompts)),
            rollouts=rollouts,
            tokens_generated=generated if math.isfinite(generated) else rollouts,
            trained=self.epochs * trained,
            tokens_trained=self.epochs * (tokens if math.isfinite(tokens) else trained),
        )
        binned = float(((self.counts > 0).sum(axis=1) <= 1) @ of_group)
        return StepStatistics(
            mixture=self.atoms.fit(self.counts, of_group, near=near),
            work=work,
            seconds=self._seconds(of_step),
            lasting=self._lasting(work),
            grad_norm=_root_mean_square(self.grad_norm, of_step),
            times=of_step,
            flat_factor=float(self.flat @ of_group) / binned if binned else 1.0,
        )

    def costs(
        self,
        work: StepWork,
        steps: FloatArray | None = None,
        more: Sequence[MeasuredWork] = (),
        at_once: float = np.inf,
    ) -> StepCosts:
        """Seconds per call and per token of each phase, fitted to the steps, and to `more` that was measured elsewhere;
        see `costs.measured_costs`. `work` is the mean work of a step.
        """
        return measured_costs([*self.measured(), *more], self._warm(steps), work, self._lasting(work), at_once=at_once)

    def measured(self) -> list[MeasuredWork]:
        """The work and the seconds of each step."""
        return measured_work(self.rows, self.epochs)

    def _warm(self, steps: FloatArray | None) -> FloatArray:
        """[S] how often each step counts for seconds: not the first of a run, which warms up, unless it is alone."""
        times = np.ones(len(self.steps)) if steps is None else steps
        warm = np.where(self.steps > 0, times, 0.0)
        return warm if warm.any() else times

    def _seconds(self, times: FloatArray) -> dict[str, float]:
        """Per step, of warm steps."""
        warm = self._warm(times)
        names = (*PHASES, *(("other",) if self.has_phases and self.has_seconds else ()))
        spent = {name: _mean(_seconds_of(self.rows, name), warm) for name in names}
        return {name: value for name, value in spent.items() if math.isfinite(value)}

    def _lasting(self, work: StepWork) -> FloatArray:
        return self.lasting if len(self.lasting) else np.ones(max(1, round(work.tokens_generated / work.rollouts)))


def measured_work(rows: Mapping[str, FloatArray], epochs: int) -> list[MeasuredWork]:
    """The work and the seconds of each step; a number that is not logged is 0."""
    spent = [
        np.nansum([_seconds_of(rows, name) for name in names], axis=0) for names in (SAMPLED, TRAINED, (*JUDGED, *ONCE))
    ]
    _, rollouts, generated, _, trained = (rows[name] for name in COUNTS)
    tokens = np.where(np.isfinite(generated), generated, rollouts)
    columns = (rollouts, tokens, epochs * trained, *spent)
    return [MeasuredWork(*of) for of in np.nan_to_num(np.stack(columns, axis=1)).tolist()]


def _seconds_of(rows: Mapping[str, FloatArray], name: str) -> FloatArray:
    """[S] seconds of a phase; "other" is what no phase contains."""
    if name != "other":
        return rows[f"seconds/{name}"]
    phases = np.nansum([rows[f"seconds/{phase}"] for phase in PHASES], axis=0)
    return np.asarray(np.maximum(0.0, rows[WHOLE] - phases - np.nan_to_num(rows[SAVING])), dtype=np.float64)


def lasting_of(lengths: IntArray | Sequence[int]) -> FloatArray:
    """[T] the share of rollouts longer than t = 0 ... T - 1 tokens; empty without lengths."""
    if not len(lengths):
        return np.zeros(0)
    return np.asarray(1 - np.cumsum(np.bincount(lengths))[:-1] / len(lengths), dtype=np.float64)


def columns_of(rows: Sequence[Mapping[str, Any]], names: Sequence[str] = COLUMNS) -> dict[str, FloatArray]:
    """name -> [S] the numbers of the rows; NaN where a row has none."""
    return {name: np.array([row.get(name, math.nan) for row in rows], dtype=np.float64) for name in names}


def _mean(values: FloatArray, times: FloatArray) -> float:
    known = np.where(np.isfinite(values), times, 0.0)
    return float(np.nan_to_num(values) @ known / known.sum()) if known.any() else math.nan


def _root_mean_square(values: FloatArray, times: FloatArray) -> float | None:
    """With 0 for a step without an update; None if no step has a finite one above 0."""
    squares = np.where(np.isfinite(values), values, 0.0) ** 2
    return float(np.sqrt(squares @ times / times.sum())) or None
