"""A window of steps as the planner reads it: rewards by group, and tokens and seconds by step.

`winnow plan` reads one from a log, and a run with `plan.use = "auto"` collects its own. Means over the steps, and over
steps and groups that count several times, are the statistics that winnow.algos.step_plan takes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from winnow.algos.costs import JUDGED, ONCE, SAMPLED, TRAINED, MeasuredWork, StepCosts, StepWork, measured_costs
from winnow.algos.reward_mixture import RewardAtoms, RewardMixture, atoms_of, base_of
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
    atoms: RewardAtoms
    counts: IntArray  # [G, L] verified rollouts of each group by the level of their reward
    flat: BoolArray  # [G] whether all rewards of a group are equal, before they are reduced to levels
    rows: Mapping[str, FloatArray]  # [S] COLUMNS of each step; NaN for a number that is not logged
    grad_norm: FloatArray  # [S] NaN where it is not logged
    lasting: FloatArray  # [T] the share of rollouts longer than t = 0 ... T - 1 tokens; empty if lengths are not logged
    epochs: int

    @property
    def has_tokens(self) -> bool:
        """Whether the tokens of a step are logged or estimated."""
        return all(bool(np.isfinite(self.rows[name]).any()) for name in COUNTS[1:])

    @functools.cached_property
    def has_phases(self) -> bool:
        """Whether warm steps have the seconds of sampling and of the update. With `rollout.ahead = 1`, only the first
        step of a run has those of sampling.
        """
        warm = self._warm(None) > 0
        return all(bool(np.isfinite(self.rows[f"seconds/{name}"][warm]).any()) for name in ("generate", "update"))

    @functools.cached_property
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
        prompts, rollouts, generated, trained, tokens, *spent = self._means(of_step)
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
            seconds={name: of for name, of in zip((*PHASES, "other"), spent, strict=True) if math.isfinite(of)},
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
        measured = [*measured_work(self.rows, self.epochs), *more]
        return measured_costs(measured, self._warm(steps), work, self._lasting(work), at_once=at_once)

    def _warm(self, steps: FloatArray | None) -> FloatArray:
        """[S] how often each step counts for seconds: not the first of a run, which warms up, unless it is alone."""
        times = np.ones(len(self.steps)) if steps is None else steps
        warm = np.where(self.steps > 0, times, 0.0)
        return warm if warm.any() else times

    def _means(self, times: FloatArray) -> list[float]:
        """The means of COUNTS, and in warm steps of the seconds of PHASES and of the rest; NaN: not logged."""
        phases = (f"seconds/{name}" for name in PHASES)
        values = np.stack([*(self.rows[name] for name in (*COUNTS, *phases)), self._other])
        finite = np.isfinite(values)
        weights = np.repeat([times, self._warm(times)], [len(COUNTS), 1 + len(PHASES)], axis=0) * finite
        total = weights.sum(axis=1)
        sums = (np.where(finite, values, 0.0) * weights).sum(axis=1)
        return [of / all_ if all_ > 0 else math.nan for of, all_ in zip(sums.tolist(), total.tolist(), strict=True)]

    @functools.cached_property
    def _other(self) -> FloatArray:
        """[S] seconds of each step that no phase contains; NaN if the whole step or its phases are not logged."""
        known = np.isfinite(self.rows[WHOLE]) & self.has_phases
        return np.where(known, _other(_known(self.rows)), np.nan)

    def _lasting(self, work: StepWork) -> FloatArray:
        return self.lasting if len(self.lasting) else np.ones(max(1, round(work.tokens_generated / work.rollouts)))


def measured_work(rows: Mapping[str, FloatArray], epochs: int) -> list[MeasuredWork]:
    """The work and the seconds of each step; a number that is not logged is 0."""
    known = _known(rows)
    spent = {"other": _other(known), **{name: known[f"seconds/{name}"] for name in PHASES}}
    _, rollouts, generated, _, trained = (known[name] for name in COUNTS)
    tokens = np.where(np.isfinite(rows[COUNTS[2]]), generated, rollouts)
    phases = (sum(spent[name] for name in names) for names in (SAMPLED, TRAINED, (*JUDGED, *ONCE)))
    return [MeasuredWork(*of) for of in np.array([rollouts, tokens, epochs * trained, *phases]).T.tolist()]


def _known(rows: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """COLUMNS of the rows, with 0 for a number that is not finite."""
    values = np.stack([rows[name] for name in COLUMNS])
    return dict(zip(COLUMNS, np.where(np.isfinite(values), values, 0.0), strict=True))


def _other(known: Mapping[str, FloatArray]) -> FloatArray:
    """[S] seconds of each step that no phase contains."""
    return np.maximum(0.0, known[WHOLE] - sum(known[f"seconds/{name}"] for name in PHASES) - known[SAVING])


def lasting_of(lengths: IntArray | Sequence[int], times: IntArray | Sequence[int] | None = None) -> FloatArray:
    """[T] the share of rollouts longer than t = 0 ... T - 1 tokens; empty without lengths. times[i] rollouts,
    by default one, have the i-th length.
    """
    if not len(lengths):
        return np.zeros(0)
    counts = np.bincount(lengths, weights=times)
    return np.asarray(1 - np.cumsum(counts)[:-1] / counts.sum(), dtype=np.float64)


@functools.lru_cache(maxsize=4)
def _atoms(values: tuple[float, ...], base: tuple[float, ...] | None) -> RewardAtoms:
    return atoms_of(np.array(values), None if base is None else np.array(base))


def atoms_for(values: Sequence[float], counts: IntArray) -> RewardAtoms:
    """The atoms for rewards of [L] values, of which [G, L] counts were seen. They are the same object for the same
    values and base, so what is derived from them is found again.
    """
    base = None if len(values) == 2 else tuple(base_of(counts).tolist())
    return _atoms(tuple(values), base)


def columns_of(rows: Sequence[Mapping[str, Any]], names: Sequence[str] = COLUMNS) -> dict[str, FloatArray]:
    """name -> [S] the numbers of the rows; NaN where a row has none."""
    return {name: np.array([row.get(name, math.nan) for row in rows], dtype=np.float64) for name in names}


def _root_mean_square(values: FloatArray, times: FloatArray) -> float | None:
    """With 0 for a step without an update; None if no step has a finite one above 0."""
    squares = np.where(np.isfinite(values), values, 0.0) ** 2
    return float(np.sqrt(squares @ times / times.sum())) or None
