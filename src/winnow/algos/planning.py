"""The planner's model of a step's progress: n sampled rollouts of a prompt, of which m are trained on, and P prompts.

Rewards have two values. A prompt that is solved with probability p has a gradient of its log-odds, delta. The rewards
of its n rollouts decide which m are kept and their advantages. Averaged over the rest, the m rollouts add phi * delta
to the update (docs/planner.md derives it):

    phi = share * A_right * (1 - p) - (1 - share) * A_wrong * p

`share` is the share of correct rollouts among the kept ones. All sizes below are in units of |mean delta| over prompts.

The pass rates of the prompts have a Beta distribution, which is fitted to the pass counts of a run's groups. The number
of correct rollouts among n of a randomly drawn prompt is then beta-binomial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.optimize import brentq, minimize
from scipy.special import betaincinv, betaln, expit, gammaln, logit, xlog1py, xlogy

from winnow.algos.advantage import Statistics
from winnow.records import FloatArray, IntArray

LEAST, MOST = 1e-3, 1e3  # bounds of both parameters: beyond these it is practically two points, or one
POINTS = 200  # equally weighted points that represent a shifted distribution
FARTHEST = 40.0  # shift of log-odds


@dataclass(frozen=True)
class PassRates:
    """A Beta distribution of the pass rate of a prompt. Both parameters are above 0."""

    a: float
    b: float

    @property
    def mean(self) -> float:
        return self.a / (self.a + self.b)

    def of_counts(self, n: int) -> FloatArray:
        """[n + 1] the probability that k of n rollouts are correct."""
        return np.exp(_log_probability(np.arange(n + 1), np.full(n + 1, n), self.a, self.b))

    def given(self, n: int) -> tuple[FloatArray, FloatArray]:
        """2 x [n + 1] the mean of the pass rate, and of its square, given that k of n rollouts are correct."""
        a: FloatArray = self.a + np.arange(n + 1, dtype=np.float64)
        total = self.a + self.b + n
        return a / total, a * (a + 1) / (total * (total + 1))

    def shifted(self, by: float) -> RatePoints:
        """The distribution with `by` added to every prompt's log-odds."""
        rates = betaincinv(self.a, self.b, (np.arange(POINTS) + 0.5) / POINTS)
        return RatePoints(np.asarray(expit(logit(rates) + by), dtype=np.float64))

    def towards(self, mean: float, stages: int) -> list[RatePoints]:
        """Distributions while the mean pass rate moves to `mean`, in `stages` equal steps of the log-odds.

        The first is half a step from this distribution, the last half a step from the end. Raises ValueError where no
        shift reaches `mean`.
        """
        if not self.mean < mean < self.shifted(FARTHEST).mean:
            raise ValueError(f"no training leads from a mean pass rate of {self.mean:.3f} to {mean:g}")
        shift = brentq(lambda by: self.shifted(by).mean - mean, -1.0, FARTHEST)
        return [self.shifted(float(shift) * (stage + 0.5) / stages) for stage in range(stages)]


@dataclass(frozen=True, eq=False)
class RatePoints:
    """Equally probable pass rates."""

    rates: FloatArray  # [Q]

    @property
    def mean(self) -> float:
        return float(self.rates.mean())

    def of_counts(self, n: int) -> FloatArray:
        """See `PassRates`."""
        return np.asarray(self._each(n).mean(axis=1), dtype=np.float64)

    def given(self, n: int) -> tuple[FloatArray, FloatArray]:
        """See `PassRates`."""
        each = self._each(n)
        total = np.maximum(each.sum(axis=1), np.finfo(np.float64).tiny)
        return each @ self.rates / total, each @ self.rates**2 / total

    def _each(self, n: int) -> FloatArray:
        """[n + 1, Q] the probability of a count at each rate."""
        k = np.arange(n + 1)[:, None]
        ways = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
        return np.asarray(np.exp(ways + xlogy(k, self.rates) + xlog1py(n - k, -self.rates)), dtype=np.float64)


Rates = PassRates | RatePoints


def flat_share(rates: Rates, n: int) -> float:
    """The share of groups of n rollouts that are all correct or all wrong."""
    counts = rates.of_counts(n)
    return float(counts[0] + counts[-1])


def fit_pass_rates(right: Sequence[int] | IntArray, of: Sequence[int] | IntArray) -> PassRates:
    """The maximum-likelihood Beta distribution of [G] right rollouts of [G] verified ones. Groups without rollouts are
    ignored.

    Both parameters are kept within LEAST and MOST, because no number of rollouts proves that all prompts are alike.
    Raises ValueError where no group has a rollout.
    """
    k, n = np.asarray(right, dtype=np.int64), np.asarray(of, dtype=np.int64)
    k, n = k[n > 0], n[n > 0]
    if not len(n):
        raise ValueError("no group has a verified rollout: there is no pass rate to fit")
    pairs, times = np.unique(np.stack([k, n]), axis=1, return_counts=True)

    def negative_log_likelihood(logs: FloatArray) -> float:
        a, b = np.exp(logs)
        return -float(times @ _log_probability(pairs[0], pairs[1], a, b))

    limits = [(np.log(LEAST), np.log(MOST))] * 2
    mean = (k.sum() + 0.5) / (n.sum() + 1)  # strictly between 0 and 1, so that both logarithms are finite
    starts = [np.log([scale * mean, scale * (1 - mean)]) for scale in (0.5, 2.0, 20.0)]
    fits = [minimize(negative_log_likelihood, start, method="L-BFGS-B", bounds=limits) for start in starts]
    a, b = np.exp(min(fits, key=lambda fit: float(fit.fun)).x)
    return PassRates(float(a), float(b))


def _log_probability(k: IntArray, n: IntArray, a: float, b: float) -> FloatArray:
    ways = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return np.asarray(ways + betaln(k + a, n - k + b) - betaln(a, b), dtype=np.float64)


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
