"""The planner's model of a step's progress: n sampled rollouts of a prompt, of which m are trained on, and P prompts.

The mean gradient of the log-probability of a reward r of a prompt is (r - mean reward) delta (docs/planner.md derives
when). Then the m kept rollouts of a group, with advantages A, add phi * delta to the update, on average over what their
rewards leave open:

    phi = mean over the kept rollouts of A (r - mean reward of the prompt)

Rewards are scaled from 0 to 1 in it. With the two rewards 0 and 1, delta is the gradient of the log-odds of the pass
rate, and the equation is exact. All sizes below are in units of |mean delta| over prompts.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from winnow.algos.advantage import Statistics
from winnow.algos.costs import Numbers
from winnow.algos.reward_mixture import RewardAtoms, RewardMixture
from winnow.records import BoolArray, FloatArray, IntArray

CreditName = Literal["grpo", "dr_grpo", "rloo"]
Law = Literal["fixed", "tuned"]  # one learning rate for all candidates, or tuned for each
ENUMERATED = 5000  # outcomes of a group; if there are more, SIMULATED of them are drawn for each atom
SIMULATED = 64
SAME = 1e-12  # variances that differ by less are equal


@dataclass(frozen=True)
class Rule:
    """The advantage with its options."""

    credit: CreditName
    statistics: Statistics = "kept"
    eps: float = 1e-4  # only of grpo


@dataclass(frozen=True)
class Noise:
    """Variance of the update, in units of |mean delta|^2."""

    rollout: Numbers  # trace of the covariance of a rollout's gradient, given its reward
    between: Numbers  # mean |delta|^2 over prompts, minus |mean delta|^2

    def times(self, factor: Numbers) -> Noise:
        """So many times the noise; both parts alike. With factors [K, 1], all that follows from it has K rows."""
        return Noise(self.rollout * factor, self.between * factor)


@dataclass(frozen=True)
class GroupSignal:
    """Contribution of a prompt's group to an update, averaged over prompts and over the rewards of rollouts. With
    arrays, the contributions in several settings.
    """

    kept: Numbers  # m
    signal: Numbers  # mean of phi
    square: Numbers  # mean of phi^2
    credit: Numbers  # mean of the kept rollouts' squared advantage
    learning: Numbers  # the share of groups in which a kept rollout has an advantage


def group_signal(mixture: RewardMixture, n: int, m: int, rule: Rule) -> GroupSignal:
    """Signal under `max_variance`, which keeps m of n rollouts; m >= n keeps all. All 0 for fewer than two kept."""
    m = min(n, m)
    return GroupSignal(m, *map(float, atom_signals(mixture.atoms, n, m, rule) @ mixture.weights))


@functools.lru_cache(maxsize=256)
def atom_signals(atoms: RewardAtoms, n: int, m: int, rule: Rule) -> FloatArray:
    """[4, A] the numbers of `GroupSignal` but `kept`, for a prompt of each atom and m <= n, over every outcome of a
    group; over drawn outcomes if there are more than ENUMERATED.
    """
    counts, chance = outcomes(atoms, n)
    kept = kept_counts(counts, atoms.values, m)
    credit = _advantages(kept if rule.statistics == "kept" else counts, atoms.values, rule)
    # phi = along - over * mean reward of the prompt
    along, over = (kept * credit) @ atoms.scaled / m, (kept * credit).sum(axis=1) / m
    means = atoms.means
    signal = along @ chance - (over @ chance) * means
    square = along**2 @ chance - 2 * ((along * over) @ chance) * means + (over**2 @ chance) * means**2
    squared = (kept * credit**2).sum(axis=1) / m @ chance
    learning = ((kept > 0) & (credit != 0)).any(axis=1).astype(np.float64) @ chance
    return np.stack([signal, square, squared, learning])


@functools.lru_cache(maxsize=2)  # settings are compared in the order of n
def outcomes(atoms: RewardAtoms, n: int) -> tuple[IntArray, FloatArray]:
    """[O, L] how many of n rollouts have each level, and [O, A] the probability of it at each atom."""
    size, q = len(atoms.values), atoms.probabilities
    if math.comb(n + size - 1, size - 1) <= ENUMERATED:
        counts, ways = _enumerated(n, size)
        impossible = (counts @ (q == 0).T.astype(np.int64)) > 0
        logs = ways[:, None] + counts @ np.log(np.where(q > 0, q, 1.0)).T
        return counts, np.where(impossible, 0.0, np.exp(logs))
    rng = np.random.default_rng(n)  # the same outcomes for every m
    counts = np.concatenate([rng.multinomial(n, row / row.sum(), size=SIMULATED) for row in q]).astype(np.int64)
    return counts, np.repeat(np.eye(len(q)), SIMULATED, axis=0) / SIMULATED


@functools.lru_cache(maxsize=16)
def _enumerated(n: int, size: int) -> tuple[IntArray, FloatArray]:
    """[O, L] every way to divide n rollouts among L levels, and [O] the logarithm of how many orders it has."""
    bars = np.array([*itertools.combinations(range(n + size - 1), size - 1)], dtype=np.int64)[::-1]
    counts = np.diff(bars, prepend=-1, append=n + size - 1) - 1
    factorials = np.array([math.lgamma(k + 1) for k in range(n + 1)])
    return counts, np.asarray(factorials[n] - factorials[counts].sum(axis=1), dtype=np.float64)


def kept_counts(counts: IntArray, values: FloatArray, m: int) -> IntArray:
    """[O, L] how many of the m rollouts that `max_variance` keeps have each level; all if there are at most m.

    The selector keeps the h highest and the m - h lowest rewards, with the h of the largest variance.
    """
    if counts[0].sum() <= m:
        return counts
    values = values - values[0]  # else an offset cancels the variance, which the selector centres first
    highest = np.arange(m + 1)[:, None]
    above = counts.sum(axis=1, keepdims=True) - counts.cumsum(axis=1)  # rollouts of higher levels
    below = counts.cumsum(axis=1) - counts
    top = np.minimum(np.maximum(highest - above[:, None], 0), counts[:, None])
    bottom = np.minimum(np.maximum(m - highest - below[:, None], 0), counts[:, None])
    both = top + bottom  # [O, m + 1, L]
    variance = both @ values**2 / m - (both @ values / m) ** 2
    most = variance.max(axis=1, keepdims=True)
    chosen = (variance >= most - SAME * float((values**2).max())).argmax(axis=1)
    return np.asarray(both[np.arange(len(counts)), chosen], dtype=np.int64)


def _advantages(counts: IntArray, values: FloatArray, rule: Rule) -> FloatArray:
    """[O, L] the advantage of a rollout of each level, with the statistics of `counts`; 0 if these are flat."""
    of = counts.sum(axis=1, keepdims=True)
    mean = (counts @ values)[:, None] / np.maximum(of, 1)
    centred = values - mean
    if rule.credit == "rloo":
        centred = centred * of / np.maximum(of - 1, 1)
    elif rule.credit == "grpo":
        squares = (counts * (values - mean) ** 2).sum(axis=1, keepdims=True)
        centred = centred / np.maximum(np.sqrt(squares / np.maximum(of - 1, 1)) + rule.eps, np.finfo(np.float64).tiny)
    mixed: BoolArray = (counts > 0).sum(axis=1, keepdims=True) > 1
    return np.where(mixed, centred, 0.0)


def second_moment(group: GroupSignal, prompts: Numbers, noise: Noise) -> Numbers:
    """The mean squared norm of an update's gradient over `prompts` prompts."""
    return group.signal**2 + _variance(group, noise) / prompts


def critical_prompts(group: GroupSignal, noise: Noise) -> float:
    """The number of prompts at which signal and noise of an update are equal; infinity without a signal.

    The simple noise scale of McCandlish et al. 2018 (arXiv 1812.06162), in prompts. Far below it, twice the prompts
    make nearly twice the progress per step, at the best learning rate of each. Far above it, they make no more.
    """
    return float(_variance(group, noise) / group.signal**2) if group.signal > 0 else math.inf


def _variance(group: GroupSignal, noise: Noise) -> Numbers:
    return group.square * (1 + noise.between) - group.signal**2 + noise.rollout * group.credit / group.kept


@dataclass(frozen=True)
class UpdateBounds:
    """AdamW's bounds on an update, in units of the gradient's norm."""

    eps: float = 0.0  # eps times the root of the number of trained weights
    clip: float = np.inf  # max_grad_norm


def progress(group: GroupSignal, prompts: Numbers, noise: Noise, *, law: Law, optimizer: UpdateBounds) -> FloatArray:
    """Progress of one update, in units that compare settings of one run and one law; an array with a number for each
    setting, without a dimension for one.

    "fixed": how far AdamW moves along mean delta at a constant learning rate. Where all groups are flat there is no
    update, and the second moment that AdamW divides by is that of the other updates. "tuned": the gain of an update at
    the learning rate that is best for it (McCandlish et al. 2018, arXiv 1812.06162).
    """
    moment = second_moment(group, prompts, noise)
    moves = np.logical_and(moment > 0, group.signal > 0)
    moment = np.where(moves, moment, 1.0)
    if law == "tuned":
        return np.where(moves, group.signal**2 / moment, 0.0)
    # share of updates with a group that has an advantage
    taken = np.where(moves, 1 - (1 - np.minimum(1.0, group.learning)) ** prompts, 1.0)
    norm = np.sqrt(moment / taken)
    clipped = np.minimum(1.0, optimizer.clip / norm)
    return np.where(moves, clipped * group.signal / (clipped * norm + optimizer.eps), 0.0)
