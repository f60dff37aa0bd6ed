"""The planner's model of a step's progress: n sampled rollouts of a prompt, of which m are trained on, and P prompts.

Rewards have two values. A prompt that is solved with probability p has a gradient of its log-odds, delta. The rewards
of its n rollouts decide which m are kept and their advantages. Averaged over the rest, the m rollouts add phi * delta
to the update (docs/planner.md derives it):

    phi = share * A_right * (1 - p) - (1 - share) * A_wrong * p

`share` is the share of correct rollouts among the kept ones. All sizes below are in units of |mean delta| over prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from winnow.algos.advantage import Statistics
from winnow.algos.pass_rates import Rates
from winnow.records import FloatArray, IntArray

CreditName = Literal["grpo", "dr_grpo", "rloo"]
Law = Literal["fixed", "tuned"]  # one learning rate for all candidates, or tuned for each


@dataclass(frozen=True)
class Rule:
    """The advantage with its options."""

    credit: CreditName
    statistics: Statistics = "kept"
    eps: float = 1e-4  # only of grpo

    @classmethod
    def of(cls, credit: CreditName, options: Mapping[str, Any]) -> Rule:
        known = {name: options[name] for name in ("statistics", "eps") if name in options}
        return cls(credit, **known)


@dataclass(frozen=True)
class Noise:
    """Variance of the update, in units of |mean delta|^2."""

    rollout: float  # trace of the covariance of a rollout's gradient, given its reward
    between: float  # mean |delta|^2 over prompts, minus |mean delta|^2


@dataclass(frozen=True)
class GroupSignal:
    """Contribution of a prompt's group to an update, averaged over prompts and over which rollouts are correct."""

    kept: int  # m
    signal: float  # mean of phi
    square: float  # mean of phi^2
    credit: float  # mean of the kept rollouts' squared advantage
    learning: float  # the share of groups in which a kept rollout has an advantage


def kept_right(n: int, m: int) -> IntArray:
    """[n + 1] how many of the m kept rollouts are correct, if k of n are and `max_variance` selects."""
    k = np.arange(n + 1)
    return np.minimum(np.maximum(m // 2, m - (n - k)), np.minimum(k, m)).astype(np.int64)


def group_signal(rates: Rates, n: int, m: int, rule: Rule) -> GroupSignal:
    """Signal under `max_variance`, which keeps m of n rollouts; m >= n keeps all. All 0 for fewer than two kept."""
    m = min(n, m)
    c = kept_right(n, m)
    right, wrong = _advantages(np.arange(n + 1), c, n, m, rule)
    share, chance = c / m, rates.of_counts(n)
    mean, mean_square = rates.given(n)
    u, v = share * right, -share * right - (1 - share) * wrong  # phi = u + v p
    return GroupSignal(
        kept=m,
        signal=float(chance @ (u + v * mean)),
        square=float(chance @ (u**2 + 2 * u * v * mean + v**2 * mean_square)),
        credit=float(chance @ (share * right**2 + (1 - share) * wrong**2)),
        learning=float(chance @ ((c > 0) & (right != 0) | (c < m) & (wrong != 0))),
    )


def _advantages(k: IntArray, c: IntArray, n: int, m: int, rule: Rule) -> tuple[FloatArray, FloatArray]:
    """2 x [n + 1] the advantage of a correct and of a wrong rollout; 0 where the statistics are flat."""
    right, of = (c, m) if rule.statistics == "kept" else (k, n)
    mean = right / of
    mixed = (right > 0) & (right < of)
    if rule.credit == "rloo":
        scale = np.full(n + 1, of / max(1, of - 1))
    elif rule.credit == "grpo":
        scale = 1 / (np.sqrt(mean * (1 - mean) * of / max(1, of - 1)) + rule.eps)
    else:
        scale = np.ones(n + 1)
    return np.where(mixed, (1 - mean) * scale, 0.0), np.where(mixed, -mean * scale, 0.0)


def second_moment(group: GroupSignal, prompts: float, noise: Noise) -> float:
    """The mean squared norm of an update's gradient over `prompts` prompts."""
    variance = group.square * (1 + noise.between) - group.signal**2 + noise.rollout * group.credit / group.kept
    return group.signal**2 + variance / prompts


@dataclass(frozen=True)
class UpdateBounds:
    """AdamW's bounds on an update, in units of the gradient's norm."""

    eps: float = 0.0  # eps times the root of the number of trained weights
    clip: float = np.inf  # max_grad_norm


def progress(group: GroupSignal, prompts: float, noise: Noise, *, law: Law, optimizer: UpdateBounds) -> float:
    """Progress of one update, in units that compare settings of one run and one law.

    "fixed": how far AdamW moves along mean delta at a constant learning rate. Where all groups are flat there is no
    update, and the second moment that AdamW divides by is that of the other updates. "tuned": the gain of an update at
    the learning rate that is best for it (McCandlish et al. 2018, arXiv 1812.06162).
    """
    moment = second_moment(group, prompts, noise)
    if moment <= 0 or group.signal <= 0:
        return 0.0
    if law == "tuned":
        return group.signal**2 / moment
    taken = 1 - (1 - group.learning) ** prompts  # share of updates with a group that has an advantage
    norm = float(np.sqrt(moment / taken))
    clipped = min(1.0, optimizer.clip / norm)
    return clipped * group.signal / (clipped * norm + optimizer.eps)
