"""The distribution of rewards of a prompt, and its mixture over prompts, fitted to the counts of logged groups.

A prompt's rewards have L levels. Its probabilities of them are those of a base, tilted by one number theta:

    q(level) is proportional to base(level) exp(theta value(level)),   value from 0 (lowest level) to 1 (highest)

With two levels, theta is the log-odds of the pass rate, and every pass rate has a theta. With more, the tilt is what an
update along the reward does, so the mean gradient of the log-probability of a level is linear in its reward, which the
planner's law needs (docs/planner.md).

Over prompts, theta has a mixture of narrow bells of fixed places, and of one point per level at which every rollout
has that level: prompts that are never, or always, solved. Only the weights are fitted, by maximum likelihood, so the
fit has one optimum (Kiefer and Wolfowitz 1956 for mixtures, Dempster, Laird and Rubin 1977 for the algorithm).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from winnow.algos.advantage import FLAT
from winnow.records import FloatArray, IntArray

MOST_LEVELS = 6  # rewards with more values are put into so many bins
WIDEST, STEP = 8.0, 0.25  # thetas of the atoms: -WIDEST to WIDEST
PLACES, WIDTH = np.arange(-7.0, 7.01, 0.5), 0.4  # of the bells
ROUNDS, CHANGE = 1000, 1e-6  # of the fit: most rounds, and the change of the mean log-likelihood that ends it
AT_ONCE = 20  # rounds whose log-likelihoods are computed together


@dataclass(frozen=True, eq=False)
class Levels:
    """The values that rewards are reduced to."""

    values: FloatArray  # [L] rising, L >= 2
    borders: FloatArray  # [L - 1] a reward above the i-th border has level i + 1 or a higher one
    seen: int  # distinct rewards in the log

    def counts(self, rewards: FloatArray, sizes: IntArray) -> IntArray:
        """[G, L] how many rewards of each group have each level; `rewards` [N] has those of [G] sizes in turn."""
        most = len(self.values)
        places = np.repeat(np.arange(len(sizes)), sizes) * most + np.searchsorted(self.borders, rewards, side="left")
        return np.bincount(places, minlength=len(sizes) * most).reshape(-1, most)

    def explained(self, rewards: FloatArray, sizes: IntArray) -> float:
        """The share of the rewards' variance within prompts that the levels have."""
        prompt = np.repeat(np.arange(len(sizes)), sizes)
        values = self.values[np.searchsorted(self.borders, rewards, side="left")]
        within, reduced = _centred(rewards, prompt), _centred(values, prompt)
        spread = float(within @ within) * float(reduced @ reduced)
        return float(within @ reduced) ** 2 / spread if spread else 0.0


def levels_of(rewards: FloatArray) -> Levels:
    """The levels of [N] rewards: every reward that differs by more than rounding, or bins of equal counts if there are
    many.

    Raises ValueError if all rewards are equal.
    """
    distinct = np.unique(rewards)
    distinct = distinct[np.append(True, np.diff(distinct) > FLAT * np.maximum(1.0, np.abs(distinct[1:])))]
    if len(distinct) < 2:
        raise ValueError("all rewards are equal")
    borders = (distinct[:-1] + distinct[1:]) / 2
    if len(distinct) > MOST_LEVELS:
        wanted = np.quantile(rewards, np.arange(1, MOST_LEVELS) / MOST_LEVELS)
        places = np.clip(np.searchsorted(borders, wanted), 0, len(borders) - 1)
        borders = borders[np.unique(places)]
    bins = np.searchsorted(borders, rewards, side="left")
    return Levels(np.bincount(bins, weights=rewards) / np.bincount(bins), borders, len(distinct))


def _centred(values: FloatArray, prompt: IntArray) -> FloatArray:
    """[N] the values minus the mean of their prompt's values."""
    return np.asarray(values - (np.bincount(prompt, weights=values) / np.bincount(prompt))[prompt], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class RewardAtoms:
    """Distributions of rewards that a prompt may have: [A] tilts of the base, then one certain reward per level."""

    values: FloatArray  # [L]
    probabilities: FloatArray  # [A, L]
    bells: FloatArray  # [J, A] the mixture's parts; each row sums to 1

    @property
    def scaled(self) -> FloatArray:
        """[L] the values from 0 to 1."""
        return np.asarray((self.values - self.values[0]) / (self.values[-1] - self.values[0]), dtype=np.float64)

    @functools.cached_property
    def means(self) -> FloatArray:
        """[A] the mean of the scaled rewards."""
        return self.probabilities @ self.scaled

    @functools.cached_property
    def _logs(self) -> FloatArray:
        """[A, L] logarithms of the probabilities."""
        return np.asarray(np.log(np.maximum(self.probabilities, 1e-300)), dtype=np.float64)

    def fit(self, counts: IntArray, times: FloatArray, *, near: RewardMixture | None = None) -> RewardMixture:
        """The mixture of the largest likelihood for groups with [G, L] counts, of which the g-th occurs times[g] times.

        `near` is a fit of almost the same groups, from which the search starts. Raises ValueError without a rollout.
        """
        used = (counts.sum(axis=1) > 0) & (times > 0)
        if not used.any():
            raise ValueError("no group has a verified rollout: there is no distribution of rewards to fit")
        counts = counts[used]
        codes = counts @ (1 + int(counts.max())) ** np.arange(counts.shape[1])[::-1]  # a number for each row
        _, first, place = np.unique(codes, return_index=True, return_inverse=True)
        weight = np.bincount(place, weights=times[used])
        weight = weight / weight.sum()
        logs = counts[first] @ self._logs.T  # [U, A]
        likelihood = np.exp(logs - logs.max(axis=1, keepdims=True)) @ self.bells.T  # [U, J]
        parts = np.full(likelihood.shape[1], 1 / likelihood.shape[1])
        if near is not None and near.parts is not None:
            parts = 0.1 * parts + 0.9 * near.parts
        parts = _most_likely(likelihood, weight, parts)
        return RewardMixture(self, parts @ self.bells, parts)


def _most_likely(likelihood: FloatArray, weight: FloatArray, parts: FloatArray) -> FloatArray:
    """[J] the parts after rounds of the EM algorithm for [U, J] likelihoods with [U] weights, until the mean
    log-likelihood changes by less than CHANGE in a round.
    """
    each, found = np.empty((AT_ONCE, len(weight))), np.empty((AT_ONCE, len(parts)))
    rows, ahead, back = [*zip(each, found, strict=True)], likelihood.dot, likelihood.T.dot
    ratio, grown = np.empty(len(weight)), np.empty(len(parts))
    logs = np.full(1 + AT_ONCE, -math.inf)  # of the round before, and of these
    for _ in range(ROUNDS // AT_ONCE):
        for of_group, after in rows:
            np.divide(weight, ahead(parts, of_group), ratio)
            parts = np.multiply(parts, back(ratio, grown), after)
        logs[1:] = np.log(each) @ weight
        small = logs[1:] - logs[:-1] < CHANGE
        if small.any():
            return np.asarray(found[small.argmax()], dtype=np.float64)
        logs[0] = logs[-1]
    return parts


def atoms_of(values: FloatArray, base: FloatArray | None = None) -> RewardAtoms:
    """The atoms for rewards of [L] rising values. `base` [L] is uniform by default; with two levels it has no effect
    but on the range of the pass rates.
    """
    size = len(values)
    scaled = (values - values[0]) / (values[-1] - values[0])
    thetas = np.arange(-WIDEST, WIDEST + STEP / 2, STEP)
    logs = thetas[:, None] * scaled + np.log(np.full(size, 1 / size) if base is None else base)
    tilted = np.exp(logs - logs.max(axis=1, keepdims=True))
    tilted /= tilted.sum(axis=1, keepdims=True)
    bells = np.exp(-0.5 * ((thetas - PLACES[:, None]) / WIDTH) ** 2)
    bells /= bells.sum(axis=1, keepdims=True)
    parts = np.zeros((len(PLACES) + size, len(thetas) + size))
    parts[: len(PLACES), : len(thetas)] = bells
    parts[len(PLACES) :, len(thetas) :] = np.eye(size)
    return RewardAtoms(values, np.concatenate([tilted, np.eye(size)]), parts)


def base_of(counts: IntArray) -> FloatArray:
    """[L] the shares of the levels over [G, L] counts, with half a rollout added to each."""
    total = counts.sum(axis=0) + 0.5
    return np.asarray(total / total.sum(), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class RewardMixture:
    """How rewards are distributed at a randomly drawn prompt."""

    atoms: RewardAtoms
    weights: FloatArray  # [A], sums to 1
    parts: FloatArray | None = None  # [J] the weights of the bells, if they were fitted

    @property
    def mean(self) -> float:
        """Of the rewards."""
        return float(self.weights @ self.atoms.probabilities @ self.atoms.values)

    @property
    def variance(self) -> float:
        """Of the rewards of a prompt, averaged over prompts."""
        q, values = self.atoms.probabilities, self.atoms.values
        return float(self.weights @ (q @ values**2 - (q @ values) ** 2))

    def flat_share(self, n: int) -> float:
        """The share of groups of n rollouts whose rewards are all equal."""
        return float(self.weights @ (self.atoms.probabilities**n).sum(axis=1))

    def share(self, low: float, high: float) -> float:
        """The share of prompts whose mean reward, scaled from 0 to 1, is from `low` to `high`."""
        means = self.atoms.means
        return float(self.weights[(means >= low) & (means <= high)].sum())


def pass_rates(rates: Sequence[float] | FloatArray, weights: Sequence[float] | FloatArray) -> RewardMixture:
    """The mixture of prompts with these pass rates, for rewards of 0 and 1."""
    p, w = np.asarray(rates, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    atoms = RewardAtoms(np.array([0.0, 1.0]), np.stack([1 - p, p], axis=1), np.eye(len(p)))
    return RewardMixture(atoms, w / w.sum())
