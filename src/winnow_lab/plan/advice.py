"""The answers of a plan: settings compared with the current one, each with an interval over draws of the evidence.

A draw of a log takes its prompts again with replacement, each with all its groups, and independently its steps (the
bootstrap of Efron 1979, clustered by prompt). A draw without a log is a world of the prior. In both, all settings are
compared within a draw, so what they have in common cancels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from winnow.algos.setting_table import Table
from winnow.algos.step_plan import Prediction, Setting, StepStatistics
from winnow.records import FloatArray
from winnow_lab.plan.evidence import LogWindow

TAILS = (0.025, 0.975)


@dataclass(frozen=True)
class Range:
    """An estimate with its 95% interval over draws."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, draws: FloatArray) -> Range:
        known = draws[np.isfinite(draws)]
        if not len(known):
            return cls(value, math.nan, math.nan)
        return cls(float(value), *(float(end) for end in np.quantile(known, TAILS)))


@dataclass(frozen=True)
class ComparedSetting:
    """A setting against the current one."""

    prediction: Prediction
    per_step: Range  # ratio of progress
    per_second: Range
    chosen: float  # share of the draws in which it is the best one of those that were compared


@dataclass(frozen=True)
class ExpectedStep:
    """What a step of a setting takes at equal progress. The intervals are for means of a second run, whose own groups
    and steps scatter, too.
    """

    reward: Range
    flat: Range
    generated: Range
    trained: Range
    seconds: Range


@dataclass(frozen=True)
class SameProgress:
    """What the steps of the evidence cost, and what the same progress would have cost in another setting."""

    steps: Range
    generated: tuple[float, Range]
    trained: tuple[float, Range]
    seconds: tuple[float, Range]


def drawn(evidence: LogWindow, draws: int, seed: int) -> Iterator[StepStatistics]:
    """Statistics of the evidence with prompts and steps drawn again."""
    rng = np.random.default_rng(seed)
    prompts, steps = int(evidence.prompt.max()) + 1, len(evidence.steps)
    whole = evidence.statistics().mixture
    for _ in range(draws):
        of_prompt = rng.multinomial(prompts, np.full(prompts, 1 / prompts)).astype(np.float64)
        of_step = rng.multinomial(steps, np.full(steps, 1 / steps)).astype(np.float64)
        yield evidence.statistics(of_prompt[evidence.prompt], of_step, near=whole)


def compare(found: Table, current: Setting, among: Sequence[Setting]) -> ComparedSetting:
    """The setting with the most progress per second among some, against the current one."""
    places = [found.settings.index(setting) for setting in among]
    best = max(places, key=lambda place: (found.predicted[place].rate, -found.settings[place].sampled))
    winners = np.array(places)[found.rate[:, places].argmax(axis=1)] if len(found.rate) else np.array([best])
    return against(found, current, best, float((winners == best).mean()))


def against(found: Table, current: Setting, place: int, chosen: float = math.nan) -> ComparedSetting:
    """One setting against the current one."""
    now, one = found.settings.index(current), found.predicted[place]
    own = found.predicted[now]
    with np.errstate(divide="ignore", invalid="ignore"):
        steps, rates = (of[:, place] / of[:, now] for of in (found.progress, found.rate))
    return ComparedSetting(
        prediction=one,
        per_step=Range.of(one.progress / own.progress if own.progress else math.nan, steps),
        per_second=Range.of(one.rate / own.rate if own.rate else math.nan, rates),
        chosen=chosen,
    )


def questions(settings: Sequence[Setting], current: Setting, *, prompts: bool) -> dict[str, list[Setting]]:
    """question -> the settings that answer it. Without `prompts`, n trades against P, and P has no question."""
    keeps_all = current.kept == current.rollouts

    def like(one: Setting) -> bool:
        same = one.kept == one.rollouts if keeps_all else one.kept == min(current.kept, one.rollouts)
        return same and (one.prompts == current.prompts or not prompts)

    found = {
        "n": [one for one in settings if like(one)],
        "m": [one for one in settings if (one.rollouts, one.prompts) == (current.rollouts, current.prompts)],
    }
    if prompts:
        found["prompts"] = [one for one in settings if (one.rollouts, one.kept) == (current.rollouts, current.kept)]
    return {**found, "together": list(settings)}


def expected(found: Table, place: int, *, groups: float) -> ExpectedStep:
    """`groups` is how many groups the evidence has for each group of the second run."""

    def ahead(value: float, draws: FloatArray) -> Range:
        second = draws[np.random.default_rng(1).permutation(len(draws))] - value if len(draws) else draws
        return Range.of(value, draws + math.sqrt(groups) * second)

    one = found.predicted[place]
    flat = ahead(one.flat, found.flat[:, place])
    return ExpectedStep(
        reward=ahead(found.mean_reward, found.reward),
        flat=Range(flat.value, max(0.0, flat.low), min(1.0, flat.high)),
        generated=ahead(one.work.tokens_generated, found.generated[:, place]),
        trained=ahead(one.work.tokens_trained, found.trained[:, place]),
        seconds=ahead(one.seconds.total, found.seconds[:, place]),
    )


def saving(found: Table, current: Setting, place: int, steps: int) -> SameProgress:
    """For the progress of so many steps of the current setting."""
    now = found.settings.index(current)
    own, other = found.predicted[now], found.predicted[place]
    with np.errstate(divide="ignore", invalid="ignore"):
        factor, factors = own.progress / max(other.progress, 1e-300), found.progress[:, now] / found.progress[:, place]

    def pair(value: Callable[[Prediction], float], draws: FloatArray) -> tuple[float, Range]:
        return steps * value(own), Range.of(steps * factor * value(other), steps * factors * draws[:, place])

    return SameProgress(
        steps=Range.of(steps * factor, steps * factors),
        generated=pair(lambda one: one.work.tokens_generated, found.generated),
        trained=pair(lambda one: one.work.tokens_trained, found.trained),
        seconds=pair(lambda one: one.seconds.total, found.seconds),
    )
