"""Confidence intervals of an evaluation's results, and a test whether two models differ on the same problems.

Each interval is for a mean over a sample from a population: problems of a benchmark, or training seeds. No interval
covers what was not sampled, such as the prompt's wording. A NaN value makes the limits NaN. The methods were chosen by
simulated coverage, false alarms and power: docs/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from winnow.records import FloatArray, IntArray
from winnow.seeds import generator

# Parts of a problem added at each end of the scale, in variances only: few problems can be all equal by chance.
_PART_OF_VALUE = 0.2
_PART_OF_DIFFERENCE = 0.05
_FINEST = 1024  # steps per 1, at most, for which the distribution is exact
_DRAWS, _AT_ONCE = 100_000, 2_000  # of random signs
_ROUNDING = 1e-9


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


class PairedTest(NamedTuple):
    """Result of a test on the problems; the difference is the first model's mean minus the second's."""

    p_value: float  # two-sided
    difference: float
    won: int  # problems on which the first is better
    lost: int
    tied: int


def paired_test(first: FloatArray, second: FloatArray, *, seed: int) -> PairedTest:
    """Test whether two models' means over the same [P] problems differ; a number in [0, 1] per problem and model.

    If they do not, each problem's difference is as likely to have the other sign (Fisher 1935). The p-value is the
    probability that random signs give a sum at least as far from 0, where equally far counts half (the mid-p-value:
    Lancaster 1961, JASA 56, 223); 1 where there is no difference. With one sample per problem it is McNemar's mid-p
    test (Fagerland et al. 2013, BMC Med. Res. Methodol. 13, 91).

    The distribution is exact where the differences are multiples of one step, 1/1024 or coarser, as with the same
    number of samples for all problems. Otherwise it is drawn at random from `seed`. Raises ValueError for different
    numbers of problems, and for values that are not finite.
    """
    if first.shape != second.shape or not np.isfinite(first - second).all():
        raise ValueError("paired_test compares finite numbers of the same problems")
    differences = np.asarray(first - second, dtype=np.float64)
    differences[np.abs(differences) < _ROUNDING] = 0.0
    won, lost = int((differences > 0).sum()), int((differences < 0).sum())
    mean = float(differences.mean()) if len(differences) else 0.0
    return PairedTest(_p_value(differences, seed), mean, won, lost, len(differences) - won - lost)


def _p_value(differences: FloatArray, seed: int) -> float:
    if abs(float(differences.sum())) < _ROUNDING:
        return 1.0
    steps = _steps(differences)
    return _drawn(differences, seed) if steps is None else _exact(steps)


def _steps(differences: FloatArray) -> IntArray | None:
    """[P] in units of the coarsest step 1/n of which all are multiples; None where there is none."""
    for per_one in range(1, _FINEST + 1):
        steps = differences * per_one
        whole = np.rint(steps)
        if np.abs(steps - whole).max(initial=0.0) < _ROUNDING * per_one:
            return whole.astype(np.int64)
    return None


def _exact(steps: IntArray) -> float:
    """The mid-p-value from the distribution of the sum over all signs, computed problem by problem."""
    sizes = np.abs(steps[steps != 0])
    chance = np.zeros(int(sizes.sum()) + 1)  # probability of each sum of the sizes with a plus sign
    chance[0] = 1.0
    for size in sizes:
        chance[size:] = (chance[size:] + chance[:-size]) / 2
        chance[:size] /= 2
    distance = np.abs(2 * np.arange(len(chance)) - sizes.sum())
    seen = abs(int(steps.sum()))
    return float(chance[distance > seen].sum() + chance[distance == seen].sum() / 2)


def _drawn(differences: FloatArray, seed: int) -> float:
    """The mid-p-value from random signs; the observed signs count as a draw, so it is never 0 (Phipson, Smyth 2010)."""
    sizes, seen, rng = np.abs(differences), abs(float(differences.sum())), generator("paired_test", seed)
    farther, same = 0, 1
    for _ in range(_DRAWS // _AT_ONCE):
        signs = rng.integers(0, 2, (_AT_ONCE, len(sizes)), dtype=np.int8)
        distance = np.abs((2.0 * signs - 1.0) @ sizes)
        farther += int((distance > seen + _ROUNDING).sum())
        same += int((np.abs(distance - seen) <= _ROUNDING).sum())
    return (farther + same / 2) / (_DRAWS + 1)
