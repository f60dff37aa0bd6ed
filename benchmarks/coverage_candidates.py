"""The candidates of benchmarks/coverage.py: intervals and tests, for R simulated evaluations at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import betaincinv, ndtr, ndtri, stdtr, stdtrit
from scipy.stats import rankdata

from winnow.records import FloatArray, IntArray

Limits = tuple[FloatArray, FloatArray]  # low and high, [R] each
LEVEL = 0.975  # one-sided level of a 95% interval
NORMAL = float(ndtri(LEVEL))
RESAMPLES = 1000
AT_ONCE = 2000  # rows per batch of characteristic functions, which bounds the memory


def student(size: int) -> float:
    return float(stdtrit(size - 1, LEVEL))


def moments(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """[R] means and squared standard errors of [R, P] values."""
    return values.mean(axis=1), values.var(axis=1, ddof=1) / values.shape[1]


def widened(values: FloatArray, part: float, low: float = 0.0) -> tuple[FloatArray, FloatArray]:
    """The same after adding a part of a problem at each end of the scale [low, 1]."""
    size = values.shape[1] + 2 * part
    mean = (values.sum(axis=1) + part * (1 + low)) / size
    return mean, ((np.square(values).sum(axis=1) + part * (1 + low**2)) / size - mean**2) / (size - 1)


def symmetric(centre: FloatArray, variance: FloatArray, quantile: float | FloatArray) -> Limits:
    half = quantile * np.sqrt(variance)
    return centre - half, centre + half


def score(mean: FloatArray, trials: FloatArray, quantile: float | FloatArray) -> Limits:
    """Wilson's interval for a share of `n_eff` effective trials."""
    scale = 1 + quantile**2 / trials
    half = quantile / scale * np.sqrt(mean * (1 - mean) / trials + quantile**2 / (4 * trials**2))
    middle = (mean + quantile**2 / (2 * trials)) / scale
    return middle - half, middle + half


def effective_trials(values: FloatArray) -> FloatArray:
    """Effective trials p (1 - p) / se^2; the number of problems if all values are equal."""
    mean, variance = moments(values)
    alike = variance == 0
    return np.where(alike, values.shape[1], mean * (1 - mean) / np.where(alike, 1.0, variance)).clip(1e-9)


def normal(values: FloatArray) -> Limits:
    return symmetric(*moments(values), NORMAL)


def t(values: FloatArray) -> Limits:
    return symmetric(*moments(values), student(values.shape[1]))


def wilson(values: FloatArray) -> Limits:
    return score(values.mean(axis=1), effective_trials(values), NORMAL)


def wilson_t(values: FloatArray) -> Limits:
    return score(values.mean(axis=1), effective_trials(values), student(values.shape[1]))


def wilson_t_widened(values: FloatArray, part: float = 0.2) -> Limits:
    """The same as winnow's `over_problems`, which the benchmark checks."""
    centre, variance = widened(values, part)
    return score(values.mean(axis=1), centre * (1 - centre) / variance, student(values.shape[1]))


def logit_t(values: FloatArray) -> Limits:
    """[0, 1] if all problems are equal."""
    mean, variance = moments(values)
    alike = variance == 0
    inner = np.where(alike, 0.5, mean)
    error = np.sqrt(variance) / (inner * (1 - inner)) * student(values.shape[1])
    low, high = (1 / (1 + np.exp(-(np.log(inner / (1 - inner)) + sign * error))) for sign in (-1, 1))
    return np.where(alike, 0.0, low), np.where(alike, 1.0, high)


def korn_graubard(values: FloatArray) -> Limits:
    """Clopper and Pearson's interval for n_eff (z / t)^2 trials."""
    mean = values.mean(axis=1)
    trials = effective_trials(values) * (NORMAL / student(values.shape[1])) ** 2
    hits, misses = mean * trials, (1 - mean) * trials
    low = np.where(hits > 0, betaincinv(hits.clip(1e-9), misses + 1, 1 - LEVEL), 0.0)
    return low, np.where(misses > 0, betaincinv(hits + 1, misses.clip(1e-9), LEVEL), 1.0)


def johnson(values: FloatArray) -> Limits:
    """Johnson (1978): the t interval, shifted by the skewness."""
    mean, variance = moments(values)
    size = values.shape[1]
    third = ((values - mean[:, None]) ** 3).mean(axis=1)
    moved = mean + third / (6 * size * np.where(variance > 0, variance * size, 1.0))
    return symmetric(moved, variance, student(size))


def resampled(values: FloatArray, rng: np.random.Generator) -> FloatArray:
    """[R, resamples] sorted means. All rows share the resampled indices; each row alone is a valid bootstrap."""
    size = values.shape[1]
    times = rng.multinomial(size, np.full(size, 1 / size), RESAMPLES)
    return np.sort(values @ times.T.astype(np.float64) / size, axis=1)


def at(means: FloatArray, shares: FloatArray) -> FloatArray:
    """[R] the quantile of each row."""
    place = np.clip(np.rint(shares * (RESAMPLES + 1)).astype(np.int64) - 1, 0, RESAMPLES - 1)
    return means[np.arange(len(means)), place]


def percentile(values: FloatArray) -> Limits:
    means, ones = resampled(values, np.random.default_rng(0)), np.ones(len(values))
    return at(means, (1 - LEVEL) * ones), at(means, LEVEL * ones)


def bca(values: FloatArray) -> Limits:
    """Efron (1987): bias-corrected and accelerated."""
    means, mean = resampled(values, np.random.default_rng(0)), values.mean(axis=1, keepdims=True)
    below = ((means < mean - 1e-12).mean(axis=1) + (means < mean + 1e-12).mean(axis=1)) / 2
    bias = ndtri(below.clip(1 / RESAMPLES, 1 - 1 / RESAMPLES))
    apart = values - mean
    acceleration = (apart**3).sum(axis=1) / (6 * ((apart**2).sum(axis=1) ** 1.5).clip(1e-300))
    shares = []
    for sign in (-1, 1):
        reach = bias + sign * NORMAL
        shares.append(ndtr(bias + reach / (1 - acceleration * reach)))
    return at(means, shares[0]), at(means, shares[1])


FAST = (normal, t, johnson, wilson, wilson_t, wilson_t_widened, logit_t, korn_graubard)
RESAMPLING = (percentile, bca)


def difference_t_widened(values: FloatArray, part: float = 0.05) -> Limits:
    """The same as winnow's `of_difference`, which the benchmark checks."""
    return symmetric(values.mean(axis=1), widened(values, part, -1.0)[1], student(values.shape[1]))


def welch(parts: Sequence[FloatArray], quantile: Callable[[FloatArray], FloatArray]) -> Limits:
    """Interval of an average of benchmarks: added variances, degrees of freedom by Welch and Satterthwaite."""
    means, variances = zip(*(moments(values) for values in parts), strict=True)
    errors = np.array(variances) / len(parts) ** 2
    degrees = np.array([values.shape[1] - 1 for values in parts])[:, None]
    total = errors.sum(axis=0)
    freedom = np.where(total > 0, total**2 / (errors**2 / degrees).sum(axis=0).clip(1e-300), 1.0)
    return symmetric(np.mean(means, axis=0), total, quantile(freedom))


def average_normal(parts: Sequence[FloatArray]) -> Limits:
    return welch(parts, lambda freedom: np.full_like(freedom, NORMAL))


def average_welch_t(parts: Sequence[FloatArray]) -> Limits:
    return welch(parts, lambda freedom: stdtrit(freedom, LEVEL))


def average_squares_added(parts: Sequence[FloatArray]) -> Limits:
    """The same as winnow's `of_average`, which the benchmark checks."""
    means = np.array([values.mean(axis=1) for values in parts])
    limits = np.array([wilson_t_widened(values) for values in parts])  # [benchmarks, 2, R]
    below, above = np.sqrt(((limits - means[:, None]) ** 2).sum(axis=0)) / len(parts)
    return means.mean(axis=0) - below, means.mean(axis=0) + above


AVERAGES = (average_normal, average_welch_t, average_squares_added)


def sign_flips(steps: IntArray) -> tuple[FloatArray, FloatArray]:
    """[R] p-values and mid-p-values of [R, P] differences in whole steps, from the sum's characteristic function."""
    spread, seen = np.sqrt((steps**2).sum(axis=1).max()), np.abs(steps.sum(axis=1))
    period = 2 ** int(np.ceil(np.log2(2 * max(8 * spread, float(seen.max())) + 4)))
    sizes = np.arange(1, int(np.abs(steps).max(initial=1)) + 1)
    times = np.stack([(np.abs(steps) == size).sum(axis=1) for size in sizes], axis=1).astype(np.float64)  # [R, sizes]
    cosines = np.cos(2 * np.pi / period * sizes[:, None] * np.arange(period // 2 + 1))
    turns = times @ (cosines < 0)  # number of negative factors of the product
    transform = np.exp(times @ np.log(np.abs(cosines).clip(1e-300))) * (1 - 2 * (turns % 2))
    chances = np.fft.irfft(transform, period, axis=1)
    distance = np.minimum(np.arange(period), period - np.arange(period))
    farther = (chances * (distance > seen[:, None])).sum(axis=1)
    same = (chances * (distance == seen[:, None])).sum(axis=1)
    nothing = seen == 0
    return np.where(nothing, 1.0, farther + same), np.where(nothing, 1.0, farther + same / 2)


def t_test(steps: IntArray) -> FloatArray:
    mean, variance = moments(steps.astype(np.float64))
    return np.where(variance > 0, 2 * stdtr(steps.shape[1] - 1, -np.abs(mean) / np.sqrt(variance.clip(1e-300))), 1.0)


def wilcoxon(steps: IntArray) -> FloatArray:
    """Signed ranks of the differences other than 0, by the normal approximation with a variance for ties."""
    ranks = (rankdata(np.abs(steps), axis=1) - (steps == 0).sum(axis=1)[:, None]) * (steps != 0)
    variance = (ranks**2).sum(axis=1)
    z = np.abs((ranks * np.sign(steps)).sum(axis=1)) / np.sqrt(variance.clip(1.0))
    return np.asarray(2 * ndtr(-z), dtype=np.float64)


def p_values(steps: IntArray) -> dict[str, FloatArray]:
    """Per candidate: [R] p-values."""
    parts = [sign_flips(steps[start : start + AT_ONCE]) for start in range(0, len(steps), AT_ONCE)]
    plain, middle = (np.concatenate(column) for column in zip(*parts, strict=True))
    return {"sign_flips": plain, "sign_flips_mid_p": middle, "t": t_test(steps), "wilcoxon": wilcoxon(steps)}
