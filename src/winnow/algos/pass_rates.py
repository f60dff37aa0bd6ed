"""Distribution of the prompts' pass rates: a Beta distribution, fitted to the pass counts of a run's groups.

The number of correct rollouts among n of a randomly drawn prompt is then beta-binomial (docs/planner.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.optimize import brentq, minimize
from scipy.special import betaincinv, betaln, expit, gammaln, logit, xlog1py, xlogy

from winnow.records import FloatArray, IntArray

LEAST, MOST = 1e-3, 1e3  # bounds of both parameters: beyond these it is practically two points, or one
POINTS = 200  # equally weighted points that represent a shifted distribution
FARTHEST = 40.0  # shift of log-odds


class Rates(Protocol):
    """A distribution of the pass rate of a prompt."""

    @property
    def mean(self) -> float: ...

    def of_counts(self, n: int) -> FloatArray:
        """[n + 1] the probability that k of n rollouts are correct."""
        ...

    def given(self, n: int) -> tuple[FloatArray, FloatArray]:
        """2 x [n + 1] the mean of the pass rate, and of its square, given that k of n rollouts are correct."""
        ...


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
        return np.asarray(self._each(n).mean(axis=1), dtype=np.float64)

    def given(self, n: int) -> tuple[FloatArray, FloatArray]:
        each = self._each(n)
        total = np.maximum(each.sum(axis=1), np.finfo(np.float64).tiny)
        return each @ self.rates / total, each @ self.rates**2 / total

    def _each(self, n: int) -> FloatArray:
        """[n + 1, Q] the probability of a count at each rate."""
        k = np.arange(n + 1)[:, None]
        ways = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
        return np.asarray(np.exp(ways + xlogy(k, self.rates) + xlog1py(n - k, -self.rates)), dtype=np.float64)


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
