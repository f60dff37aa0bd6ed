"""The sizes of a step and what they give: progress, seconds and tokens, from the statistics of a window of steps.

`winnow plan` calls this for a log, and for a configuration with supposed statistics. Nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from winnow.algos.costs import Numbers, PredictedSeconds, StepClock, StepWork
from winnow.algos.planning import (
    GroupSignal,
    Law,
    Noise,
    Rule,
    UpdateBounds,
    atom_signals,
    critical_prompts,
    group_signal,
    progress,
    second_moment,
)
from winnow.algos.reward_mixture import RewardMixture
from winnow.records import FloatArray

NOISE = Noise(rollout=6.3, between=4.3)  # measured on the bundled policy: docs/planner.md
SPREAD = 0.1  # share of the trained weights that AdamW's eps acts on, measured on the bundled policy
SAMPLED = (2, 4, 8, 16, 32, 64, 128, 256)  # n
KEPT = (2, 4, 8, 16, 32, 64)  # m
FACTOR = 4  # n and P are at most so many times larger or smaller than they were


@dataclass(frozen=True, order=True)
class Setting:
    """n, m and P of a step."""

    rollouts: int  # n, sampled per prompt
    kept: int  # m, trained on per prompt; n: all
    prompts: int  # P, prompts per step

    def __str__(self) -> str:
        """ "n = 16, m = 4, 8 prompts"."""
        kept = "all" if self.kept >= self.rollouts else f"{self.kept}"
        return f"n = {self.rollouts}, m = {kept}, {self.prompts} prompts"

    @property
    def sampled(self) -> int:
        """Rollouts sampled per step."""
        return self.rollouts * self.prompts


@dataclass(frozen=True, eq=False)
class StepStatistics:
    """Means over a window of steps."""

    mixture: RewardMixture
    work: StepWork
    seconds: Mapping[str, float]  # of each phase; empty if unknown
    lasting: FloatArray  # [T] the share of rollouts longer than t = 0 ... T - 1 tokens
    grad_norm: float | None = None  # root mean square before clipping, with 0 for a step without an update
    times: FloatArray | None = None  # [S] how often each step counts; None: once
    flat_factor: float = 1.0  # groups whose rewards are equal, by those whose rewards have one level

    @property
    def length(self) -> float:
        """Mean tokens of a sampled rollout."""
        return self.work.tokens_generated / self.work.rollouts

    @property
    def trained_length(self) -> float:
        """Mean tokens of a trained rollout; those of a sampled one if none was trained."""
        return self.work.tokens_trained / self.work.trained if self.work.trained else self.length


@dataclass(frozen=True)
class Prediction:
    """What a setting gives per step."""

    setting: Setting
    progress: float
    seconds: PredictedSeconds
    work: StepWork
    flat: float  # share of groups
    extrapolated: bool  # whether a cost curve has no point at so many rollouts

    @property
    def rate(self) -> float:
        """Progress per second."""
        return self.progress / self.seconds.total if self.seconds.total > 0 else 0.0


@dataclass(frozen=True, eq=False)
class StepModel:
    """The part of a plan that does not depend on the window: advantage, noise and optimizer."""

    current: Setting
    rule: Rule
    noise: Noise = NOISE
    law: Law = "fixed"
    epochs: int = 1
    updates: int = 1  # per epoch
    trains_all: bool = False  # whether a loss term trains on flat groups, too
    eps: float = 0.0  # AdamW's, times the root of the number of weights that share the gradient
    clip: float = np.inf  # of the gradient's norm

    def signal(self, mixture: RewardMixture, setting: Setting) -> GroupSignal:
        """The contribution of a group."""
        return group_signal(mixture, setting.rollouts, setting.kept, self.rule)

    def signals(self, mixture: RewardMixture, settings: Sequence[Setting]) -> GroupSignal:
        """The contributions of a group, as arrays with a number for each setting."""
        pairs = [(one.rollouts, min(one.kept, one.rollouts)) for one in settings]
        places = {pair: place for place, pair in enumerate(dict.fromkeys(pairs))}
        found = np.array([atom_signals(mixture.atoms, n, m, self.rule) @ mixture.weights for n, m in places])
        return GroupSignal(np.array([m for _, m in pairs]), *found[[places[pair] for pair in pairs]].T)

    def bounds(self, statistics: StepStatistics) -> UpdateBounds:
        """AdamW's bounds, in units of |mean delta|, which follows from the run's gradient norm; none without one."""
        if statistics.grad_norm is None:
            return UpdateBounds()
        group = self.signal(statistics.mixture, self.current)
        moment = second_moment(group, self.current.prompts / self.updates, self.noise)
        if moment <= 0:
            return UpdateBounds()
        unit = float(statistics.grad_norm / moment**0.5)
        return UpdateBounds(eps=self.eps / unit, clip=self.clip / unit)

    def predict(
        self,
        settings: Sequence[Setting],
        statistics: StepStatistics,
        clock: StepClock,
        *,
        at_once: Numbers = np.inf,
        group: GroupSignal | None = None,
    ) -> list[Prediction]:
        """Progress, seconds and work of a step of each setting, at the window's lengths. Flat groups are trained on
        only if a term needs it. `at_once` may have a number for each setting. `group` are their `signals`, if known.
        """
        group = self.signals(statistics.mixture, settings) if group is None else group
        rollouts, prompts = np.array([(one.rollouts, one.prompts) for one in settings]).T
        sampled = rollouts * prompts
        gain = progress(group, prompts / self.updates, self.noise, law=self.law, optimizer=self.bounds(statistics))
        learning = 1.0 if self.trains_all else 1 - statistics.flat_factor * (1 - group.learning)
        trained = prompts * group.kept * learning * self.epochs
        columns = (prompts, sampled, sampled * statistics.length, trained, trained * statistics.trained_length)
        works = [StepWork(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
        each = {n: statistics.flat_factor * statistics.mixture.flat_share(n) for n in set(rollouts.tolist())}
        seconds, beyond = clock.seconds(works, at_once=at_once), clock.extrapolates(works, at_once=at_once)
        gains, flat = (self.epochs * self.updates * gain).tolist(), [each[one.rollouts] for one in settings]
        return [Prediction(*row) for row in zip(settings, gains, seconds, works, flat, beyond, strict=True)]

    def critical_prompts(self, mixture: RewardMixture, setting: Setting) -> float:
        """The prompts of a step with whose updates signal and noise are equal; see `planning.critical_prompts`."""
        return self.updates * critical_prompts(self.signal(mixture, setting), self.noise)


NEARLY = 0.25  # of the rollouts of a step, by which a setting may differ from it and sample about as many


def candidates(current: Setting, *, prompts: bool, divisor: int = 1, most: float = np.inf) -> Iterator[Setting]:
    """The settings to compare with the current one, which is one of them, by n, m and P.

    With `prompts`, P is varied with n. Without it, a step samples as many rollouts as now, as nearly as whole prompts
    allow, so that n trades against P. P is at least `divisor` (updates per step), and at most `most`.
    """
    found = {current}
    low, high = current.rollouts / FACTOR, current.rollouts * FACTOR
    for n in sorted({current.rollouts, *(n for n in SAMPLED if low <= n <= high)}):
        equal = max(1, round(current.sampled / n))
        if not prompts and abs(n * equal - current.sampled) > NEARLY * current.sampled:
            continue  # whole prompts cannot sample about as many rollouts
        numbers = [round(current.prompts * 2.0**k) for k in (-2, -1, 0, 1, 2)] if prompts else [equal]
        for p in {p for p in numbers if max(1, divisor) <= p <= most}:
            found |= {Setting(n, m, p) for m in {*KEPT, current.kept, n} if 2 <= m <= n}
    yield from sorted(found)
