"""The next sizes of a run that chooses them itself: the settings that it may move to, and the one that it takes.

A setting has to be better than the present one at several noises of the gradient, because the noise is measured on few
updates, or only supposed. The noise follows from two products of the gradients g that the updates have anyway. Let m be
AdamW's mean of the earlier gradients. Then, if the mean gradient turns slowly,

    mean of g m  =  S^2 |mean delta|^2        mean of g g  =  M |mean delta|^2

because a gradient and the earlier ones have independent noise. Their ratio is the planner's S^2 / M (docs/planner.md).
The idea is that of the noise scale from two batch sizes (McCandlish et al. 2018, arXiv 1812.06162, appendix A.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from winnow.algos.costs import StepClock
from winnow.algos.planning import GroupSignal, Noise, progress
from winnow.algos.step_plan import Prediction, Setting, StepModel, StepStatistics
from winnow.records import FloatArray

MOST = 2.0  # factor by which n, m, P and the batch P m change in a window
LEAST_GAIN = 1.05  # a smaller gain is no reason to change
SUPPOSED, MEASURED = (0.25, 1.0, 4.0), (0.5, 1.0, 2.0)  # factors of the noise at which a setting has to be better
FEWEST = 8  # updates; a noise that fewer of them show is as uncertain as a supposed one
FARTHEST = 16.0  # largest factor between the measured noise and the supposed one


@dataclass(frozen=True)
class SizeBounds:
    """What a run may choose: the least and the most of each size, ends included."""

    rollouts: tuple[int, int]
    kept: tuple[int, int]
    prompts: tuple[int, int]
    keeps_all: bool = False  # m = n

    @property
    def largest(self) -> Setting:
        """The setting that needs the most memory."""
        return Setting(self.rollouts[1], min(self.kept[1], self.rollouts[1]), self.prompts[1])

    def allows(self, setting: Setting) -> bool:
        """Whether a setting is within the bounds."""
        sizes = ((setting.rollouts, self.rollouts), (setting.kept, self.kept), (setting.prompts, self.prompts))
        inside = all(low <= size <= high for size, (low, high) in sizes)
        return inside and 2 <= setting.kept <= setting.rollouts


def moves(current: Setting, bounds: SizeBounds, *, jump: bool) -> list[Setting]:
    """The settings to compare, the current one among them: sizes times powers of two, rounded up, within the bounds.

    Without `jump`, every size and the batch change by a factor of at most MOST.
    """

    powers = [2.0**k for k in range(-12, 13)] if jump else [1 / MOST, 1.0, MOST]

    def sizes(now: int, ends: tuple[int, int]) -> set[int]:
        return {size for factor in powers if ends[0] <= (size := math.ceil(now * factor)) <= ends[1]}

    kept, prompts = sizes(current.kept, bounds.kept), sizes(current.prompts, bounds.prompts)
    batch = current.prompts * current.kept
    found = {(current.rollouts, current.kept, current.prompts)}
    for n in sizes(current.rollouts, bounds.rollouts):
        every = {n} if (bounds.keeps_all or jump) and bounds.kept[0] <= n <= bounds.kept[1] else set()
        for m in every if bounds.keeps_all else {m for m in kept if m <= n} | every:
            found |= {(n, m, p) for p in prompts if jump or 1 / MOST <= p * m / batch <= MOST}
    return [Setting(*of) for of in sorted(found)]


@dataclass(frozen=True)
class ComparedSizes:
    """A setting against the current one."""

    prediction: Prediction
    gains: tuple[float, ...]  # ratio of progress per second, at each noise

    @property
    def least(self) -> float:
        """The smallest gain over the noises."""
        return min(self.gains)


def compare(
    model: StepModel,
    settings: Sequence[Setting],
    statistics: StepStatistics,
    clock: StepClock,
    *,
    at_once: float,
    factors: Sequence[float],
) -> list[ComparedSizes]:
    """All settings, the one with the largest least gain first; of equal ones, the one that samples less. The current
    setting is one of them, with gains of 1.
    """
    group, of_update = model.signals(statistics.mixture, settings), np.array([one.prompts for one in settings])
    found = model.predict(settings, statistics, clock, at_once=at_once, group=group)
    bounds, seconds = model.bounds(statistics), np.array([max(one.seconds.total, 1e-12) for one in found])
    noises = model.noise.times(np.array(factors)[:, None])
    rates = progress(group, of_update / model.updates, noises, law=model.law, optimizer=bounds) / seconds
    own = rates[:, [settings.index(model.current)]]
    gains = np.where(own > 0, rates / np.maximum(own, 1e-300), 1.0)  # [noises, settings]
    compared = [ComparedSizes(one, tuple(of_one)) for one, of_one in zip(found, gains.T.tolist(), strict=True)]
    return sorted(compared, key=lambda one: (-one.least, one.prediction.setting.sampled))


def chosen(compared: Sequence[ComparedSizes], current: Setting) -> Setting:
    """The first of `compare` if its least gain is at least LEAST_GAIN, else the current setting."""
    return compared[0].prediction.setting if compared[0].least >= LEAST_GAIN else current


def signal_share(products: Iterable[tuple[float, float]]) -> float | None:
    """S^2 / M, the share of an update's squared gradient that is signal, from (g m, g g) of updates; None without any.

    From 0 to 1. It is 0 if the products show no signal.
    """
    pairs: FloatArray = np.array([*products], dtype=np.float64)
    if not len(pairs) or pairs[:, 1].sum() <= 0:
        return None
    return float(np.clip(pairs[:, 0].sum() / pairs[:, 1].sum(), 0.0, 1.0))


def noise_factor(share: float, group: GroupSignal, prompts: float, noise: Noise) -> float:
    """How many times the `noise` makes an update over `prompts` prompts have this share of signal.

    Both parts of the noise are scaled alike, as one ratio cannot tell them apart. From 1 / FARTHEST to FARTHEST.
    """
    grows = group.square * noise.between + noise.rollout * group.credit / group.kept
    if grows <= 0 or group.signal <= 0:
        return 1.0
    variance = prompts * group.signal**2 * (1 / max(share, 1e-9) - 1)
    return float(np.clip((variance - group.square + group.signal**2) / grows, 1 / FARTHEST, FARTHEST))
