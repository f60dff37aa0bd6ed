"""Confidence intervals of an evaluation's results, chosen by simulated coverage: docs/statistics.md.

Each is for a mean over a sample from a population: problems of a benchmark, or training seeds. No interval covers what
was not sampled, such as the prompt's wording. A NaN value makes the limits NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from winnow.records import FloatArray

# Parts of a problem added at each end of the scale, in variances only: few problems can be all equal by chance.
_PART_OF_VALUE = 0.2
_PART_OF_DIFFERENCE = 0.05


class Interval(NamedTuple):
    """Limits of a mean at a level of confidence."""

    low: float
    high: float


def over_problems(values: FloatArray, level: float = 0.95) -> Interval:
    """Interval of the mean of [P] numbers in [0, 1], one per problem: accuracy over its samples, pass@k, majority, 0 or
    1.

    Wilson's score interval (1927) for a share of n_eff = p (1 - p) / se^2 independent trials (Dean and Pagano 2015, J.
    Survey Stat. Methodol. 3, 484), with Student's t on P - 1 degrees of freedom for the normal quantile, as Korn and
    Graubard (1998, Survey Methodology 24, 193) adjust theirs. Never empty; [0, 1] for fewer than two problems.
    """
    if len(values) < 2:
        return Interval(0.0, 1.0)
    mean, (centre, variance) = float(values.mean()), _widened(values, 0.0, 1.0, _PART_OF_VALUE)
    trials = centre * (1.0 - centre) / variance
    t = _t(level, len(values) - 1)
    middle = (mean + t * t / (2 * trials)) / (1 + t * t / trials)
    half = t / (1 + t * t / trials) * math.sqrt(mean * (1 - mean) / trials + t * t / (4 * trials**2))
    return Interval(max(min(middle - half, mean), 0.0), min(max(middle + half, mean), 1.0))


def of_average(benchmarks: Sequence[FloatArray], level: float = 0.95) -> Interval:
    """Interval of the unweighted average of several benchmarks' means, each of [P] numbers in [0, 1] as in
    `over_problems`.

    The distances from each mean to its limits are added as squares: the method of variance estimates recovery of Zou
    and Donner (2008, Statistics in Medicine 27, 1693). NaN without a benchmark.
    """
    if not benchmarks:
        return Interval(math.nan, math.nan)
    means = np.array([values.mean() for values in benchmarks])
    limits = np.array([over_problems(values, level) for values in benchmarks])
    below, above = np.sqrt(((limits - means[:, None]) ** 2).sum(axis=0)) / len(means)
    return Interval(float(means.mean() - below), float(means.mean() + above))


def of_difference(first: FloatArray, second: FloatArray, level: float = 0.95) -> Interval:
    """Interval of the mean over the same [P] problems of first - second, both numbers in [0, 1] per problem.

    Student's t of the paired differences. Never empty; [-1, 1] for fewer than two problems.
    """
    differences = first - second
    if len(differences) < 2:
        return Interval(-1.0, 1.0)
    mean, (_, variance) = float(differences.mean()), _widened(differences, -1.0, 1.0, _PART_OF_DIFFERENCE)
    half = _t(level, len(differences) - 1) * math.sqrt(variance)
    return Interval(max(mean - half, -1.0), min(mean + half, 1.0))


def over_seeds(values: FloatArray, level: float = 0.95) -> Interval:
    """Interval of the mean of [S] training runs with different seeds: Student's t. NaN for one seed, which has no
    spread.
    """
    if len(values) < 2:
        return Interval(math.nan, math.nan)
    half = _t(level, len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Interval(float(values.mean() - half), float(values.mean() + half))


def of_seed_means(first: FloatArray, second: FloatArray, level: float = 0.95) -> Interval:
    """Interval of the mean of [S] training runs minus the mean of [T] others: Welch's (1947, Biometrika 34, 28).

    Student's t, with the degrees of freedom that allow for unequal variances. NaN where either has fewer than two runs.
    """
    if min(len(first), len(second)) < 2:
        return Interval(math.nan, math.nan)
    difference = float(first.mean() - second.mean())
    one, two = (float(values.var(ddof=1)) / len(values) for values in (first, second))
    if one + two == 0:
        return Interval(difference, difference)
    degrees = (one + two) ** 2 / (one**2 / (len(first) - 1) + two**2 / (len(second) - 1))
    half = _t(level, degrees) * math.sqrt(one + two)
    return Interval(difference - half, difference + half)


def _widened(values: FloatArray, low: float, high: float, part: float) -> tuple[float, float]:
    """Mean, and squared standard error of the mean, of the values with a part of a problem added at each end of the
    scale.
    """
    size = len(values) + 2 * part
    mean = (values.sum() + part * (low + high)) / size
    square = (np.square(values).sum() + part * (low**2 + high**2)) / size
    return float(mean), float((square - mean**2) / (size - 1))


def _t(level: float, degrees: float) -> float:
    """Two-sided quantile of Student's distribution."""
    return float(stdtrit(degrees, 0.5 + level / 2))
