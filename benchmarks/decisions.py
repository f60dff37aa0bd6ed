"""The word of a contrast between the times to a level: gain, loss, equal, or undecided.

A ratio is the baseline's time over the group's, so above 1 the group is sooner. Gain or loss: the 95% interval excludes
1. Equal: it does not, and the 90% interval is within 0.8 and 1.25, as two one-sided tests at 5% (Schuirmann 1987). All
else is undecided. "Not decided" is no word of an interval: claim_words.py gives it to a contrast whose learning rates
were not tuned. A seed that never reaches the level enters at its horizon, so the ratio is a bound: it supports the
word on its own side, and never "equal".

The interval is Student's t of log times. Its spread is the residual over the arms and seeds of a page, which for two
arms is the interval of the paired differences. With several looks, alpha is spent by Pocock's spending function (Lan
and DeMets 1983), so each interval holds over all looks. A fixed sequence of contrasts passes alpha on only after a gain
or a loss, so the chance of any false gain or loss in the sequence is at most 5%.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import ndtr, stdtrit

Word = Literal["gain", "loss", "equal", "undecided", "not decided"]
Bound = Literal["", "at most", "at least", "none"]  # what the ratio is, with seeds that never reached the level
MARGIN = (0.8, 1.25)
ALPHA = {"difference": 0.05, "equality": 0.10}  # two-sided; 1 - alpha is the interval's level
NODES = 200  # of Gauss and Legendre, between the limits of a look
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Times:
    """When the seeds of an arm reach the level: one number per seed, the horizon for those that never do."""

    at: tuple[float, ...]
    never: tuple[bool, ...]

    @classmethod
    def of(cls, at: Sequence[float | None], horizon: float) -> Times:
        """With None for never."""
        return cls(tuple(horizon if time is None else time for time in at), tuple(time is None for time in at))


@dataclass(frozen=True)
class Decision:
    """A word, and the numbers that it is made from."""

    word: Word
    ratio: float
    low: float  # the 95% interval; NaN with fewer than two seeds
    high: float
    near_low: float  # the 90% interval
    near_high: float
    seeds: int
    bound: Bound = ""


def word_of(
    low: float,
    high: float,
    near: tuple[float, float],
    bound: Bound = "",
    *,
    tested: bool = True,
    none: float = 1.0,
    margin: tuple[float, float] = MARGIN,
) -> Word:
    """The word of an interval, if `none` is no effect: 1 of a ratio, 0 of a difference. Without `tested`, the sequence
    of contrasts allows neither a gain nor a loss.
    """
    if tested and low > none and bound in ("", "at least"):
        return "gain"
    if tested and high < none and bound in ("", "at most"):
        return "loss"
    if low <= none <= high and margin[0] <= near[0] and near[1] <= margin[1] and not bound:
        return "equal"
    return "undecided"


def decided(
    baseline: Times,
    group: Times,
    arms: Sequence[Times] = (),
    *,
    levels: Mapping[str, float] = ALPHA,
    tested: bool = True,
) -> Decision:
    """The decision on two arms with the same seeds in the same order, with the spread of `arms` (default: the two).

    `levels` are the two-sided nominal levels of the look.
    """
    one, two = (np.log(np.array(arm.at, dtype=np.float64)) for arm in (baseline, group))
    seeds, bound = len(one), _bound(baseline, group)
    middle = float((one - two).mean())
    error, freedom = _spread(arms or (baseline, group))
    half = {kind: _half(error, freedom, alpha) for kind, alpha in levels.items()}
    low, high = math.exp(middle - half["difference"]), math.exp(middle + half["difference"])
    near = math.exp(middle - half["equality"]), math.exp(middle + half["equality"])
    return Decision(word_of(low, high, near, bound, tested=tested), math.exp(middle), low, high, *near, seeds, bound)


def _bound(baseline: Times, group: Times) -> Bound:
    if any(baseline.never):
        return "none" if any(group.never) else "at least"
    return "at most" if any(group.never) else ""


def _spread(arms: Sequence[Times]) -> tuple[float, int]:
    """(standard error of a mean difference of two arms, degrees of freedom), from the residual over arms and seeds."""
    logs = np.log(np.array([arm.at for arm in arms], dtype=np.float64))  # [A, S]
    residual = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
    count, seeds = logs.shape
    freedom = (count - 1) * (seeds - 1)
    return (math.sqrt(2 * float((residual**2).sum()) / freedom / seeds) if freedom else math.nan), freedom


def _half(error: float, freedom: int, alpha: float) -> float:
    return float(stdtrit(freedom, 1 - alpha / 2)) * error if freedom else math.nan


@cache
def pocock_levels(alpha: float, information: tuple[float, ...]) -> list[float]:
    """The two-sided nominal level of each look at these shares of the information, ascending and at most 1.

    Until the share t, alpha * log(1 + (e - 1) t) is spent. The chance of a crossing is integrated over the normal
    process with independent increments: `at` and `mass` are its distribution at the last look, within the limits.
    """
    at, mass, before, spent, levels = np.zeros(1), np.ones(1), 0.0, 0.0, list[float]()
    for share in information:
        spend = alpha * math.log1p((math.e - 1) * share) - spent
        step, root = math.sqrt(share - before), math.sqrt(share)
        z = float(brentq(_crossing, 0.0, 20.0, args=(at / step, root / step, mass, spend)))
        nodes, weights = np.polynomial.legendre.leggauss(NODES)
        new = nodes * z * root
        density = np.exp(-(((new[:, None] - at) / step) ** 2) / 2) / (step * math.sqrt(2 * math.pi))
        at, mass, before, spent = new, weights * z * root * (density @ mass), share, spent + spend
        levels.append(2 * float(ndtr(-z)))
    return levels


def _crossing(z: float, at: FloatArray, width: float, mass: FloatArray, spend: float) -> float:
    """The chance of a first crossing of z at a look, minus what may be spent; in units of the look's increment."""
    return float(mass @ (ndtr(at - z * width) + ndtr(-at - z * width))) - spend


def in_sequence(
    arms: Mapping[str, Times], contrasts: Sequence[tuple[str, str]], looks: Sequence[int]
) -> list[Decision]:
    """The decision on each contrast: at the first look with a word, else at the last look that the seeds allow. Raises
    ValueError if they allow none.

    Look k has the first `looks[k]` seeds. A contrast is tested for a gain or a loss from the look on at which every
    earlier contrast is one.
    """
    have = min(len(arm.at) for arm in arms.values())
    levels = [pocock_levels(alpha, tuple(look / looks[-1] for look in looks)) for alpha in ALPHA.values()]
    done = [(look, dict(zip(ALPHA, of, strict=True))) for look, *of in zip(looks, *levels, strict=True) if look <= have]
    if not done:
        raise ValueError(f"{have} seeds are fewer than the first look, {looks[0]}")
    found, opened = list[Decision](), looks[0]  # the look from which on this contrast is tested
    for first, second in contrasts:
        for look, of in done:
            part = {name: Times(arm.at[:look], arm.never[:look]) for name, arm in arms.items()}
            decision = decided(part[first], part[second], list(part.values()), levels=of, tested=look >= opened)
            if decision.word != "undecided":
                break
        found.append(decision)
        opened = look if decision.word in ("gain", "loss") else looks[-1] + 1
    return found
