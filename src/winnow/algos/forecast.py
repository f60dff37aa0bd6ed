"""A forecast of held-out accuracy: saturating curves through the evaluations of a run, each with its weight.

The curve is y(t) = start + (plateau - start) g(t), t >= 0 in steps, and g rises from 0 to 1. Shapes of g:

    exponential   1 - exp(-(t / tau)^k)
    power         1 - (1 + t / tau)^-k
    hill          t^k / (t^k + tau^k), a sigmoid in log t (Khatri et al. 2025, arXiv 2510.13786)

No single curve is chosen. A grid of plateaus, scales tau and exponents k is weighted by likelihood, and the forecast is
the weighted mixture (Bayesian model averaging with a uniform prior on the grid; `start` is fitted for each point). Two
numbers are added to the fit: the scatter of an evaluation, estimated from the residuals with a prior, and a drift,
which is a random walk in log t that begins at the last evaluation. Both, and the shape, were chosen on committed runs
(docs/planner.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from winnow.records import BoolArray, FloatArray

Shape = Literal["exponential", "power", "hill"]
LEAST_POINTS = 5  # evaluations, below which there is no forecast
REACHED = 0.95  # of the plateau
LEVEL = 0.90  # of the intervals
WIDTH = 0.0005  # of the grid of accuracies on which quantiles are read
QUANTILES = ((1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2)
PLATEAUS = np.linspace(0.0, 1.0, 101)
SCALES = np.geomspace(0.05, 20.0, 41)  # tau, in units of the last evaluated step
EXPONENTS = {
    "exponential": (0.35, 0.5, 0.7, 1.0, 1.4),
    "power": (0.35, 0.5, 0.7, 1.0, 1.5, 2.5),
    "hill": (0.5, 0.7, 1.0, 1.5, 2.2),
}


@dataclass(frozen=True)
class ForecastConstants:
    """What was chosen on committed runs."""

    shape: Shape = "hill"
    scatter: float = 0.02  # standard deviation of an evaluation that its prior expects
    trust: float = 4.0  # evaluations that the prior counts as
    drift: float = 0.035  # standard deviation after the steps have grown by a factor of e
    temper: float = 1.5  # evaluations of one run that count as one, because their errors are alike


CHOSEN = ForecastConstants()


@dataclass(frozen=True)
class Quantiles:
    """A median and the central interval of LEVEL; infinity for a step that is never reached."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class AccuracyForecast:
    """Weighted curves, [C] each."""

    last: float  # the last evaluated step
    start: FloatArray
    plateau: FloatArray
    tau: FloatArray
    k: FloatArray
    weight: FloatArray  # sums to 1
    scatter: float  # of one evaluation
    constants: ForecastConstants

    def at(self, step: float, *, evaluations: float = np.inf) -> Quantiles:
        """Accuracy after `step` steps; of the curve, or of the mean of so many evaluations there."""
        means = self.start + (self.plateau - self.start) * rise(self.constants.shape, step, self.tau, self.k)
        drift = self.constants.drift * np.sqrt(np.log(max(1.0, step / self.last)))
        return _normal_mixture(means, self.weight, float(np.hypot(drift, self.scatter / np.sqrt(evaluations))))

    @cached_property
    def expected_plateau(self) -> Quantiles:
        """The accuracy that the curves approach."""
        return _weighted(self.plateau, self.weight)

    @property
    def rising(self) -> float:
        """The weight of the curves that rise by more than the scatter of one evaluation."""
        return float(self.weight[self._rises].sum())

    @property
    def _rises(self) -> BoolArray:
        return np.asarray(self.plateau - self.start > self.scatter, dtype=np.bool_)

    @cached_property
    def reached(self) -> Quantiles:
        """The step after which a curve that rises is at REACHED of its plateau; NaN if none rises."""
        rises = self._rises
        if not rises.any():
            return Quantiles(np.nan, np.nan, np.nan)
        start, plateau, tau, k = (each[rises] for each in (self.start, self.plateau, self.tau, self.k))
        part = (REACHED * plateau - start) / (plateau - start)
        steps = np.where(part > 0, inverse_rise(self.constants.shape, np.clip(part, 0.0, 1.0), tau, k), 0.0)
        return _weighted(steps, self.weight[rises] / self.weight[rises].sum())


def rise(shape: Shape, t: float | FloatArray, tau: FloatArray, k: FloatArray) -> FloatArray:
    """g(t)."""
    ratio = np.asarray(t / tau, dtype=np.float64)
    if shape == "exponential":
        return np.asarray(-np.expm1(-(ratio**k)), dtype=np.float64)
    if shape == "power":
        return np.asarray(1 - (1 + ratio) ** -k, dtype=np.float64)
    return np.asarray(ratio**k / (1 + ratio**k), dtype=np.float64)


def inverse_rise(shape: Shape, part: FloatArray, tau: FloatArray, k: FloatArray) -> FloatArray:
    """The t with g(t) = part; infinity for 1."""
    with np.errstate(divide="ignore"):
        if shape == "exponential":
            return np.asarray(tau * (-np.log1p(-part)) ** (1 / k), dtype=np.float64)
        if shape == "power":
            return np.asarray(tau * ((1 - part) ** (-1 / k) - 1), dtype=np.float64)
        return np.asarray(tau * (part / (1 - part)) ** (1 / k), dtype=np.float64)


def forecast(
    steps: Sequence[float] | FloatArray, accuracies: Sequence[float] | FloatArray, constants: ForecastConstants = CHOSEN
) -> AccuracyForecast | None:
    """The forecast from [P] evaluations; None for fewer than LEAST_POINTS, or if all are at one step."""
    t, y = np.asarray(steps, dtype=np.float64), np.asarray(accuracies, dtype=np.float64)
    t, y = t[np.isfinite(y)], y[np.isfinite(y)]
    if len(t) < LEAST_POINTS or t.max() <= t.min():
        return None
    last = float(t.max())
    tau, k = (grid.ravel() for grid in np.meshgrid(SCALES * last, EXPONENTS[constants.shape], indexing="ij"))
    g = rise(constants.shape, t, tau[:, None], k[:, None])  # [C, P]
    start, squares = _least_squares(y, g, PLATEAUS[:, None])
    plateau, tau, k = (np.broadcast_to(each, start.shape).ravel() for each in (PLATEAUS[:, None], tau, k))
    start, squares = start.ravel(), squares.ravel()
    # Student's t: the scatter is integrated over its scaled inverse chi-squared prior
    freedom = len(t) / constants.temper + constants.trust
    total = squares / constants.temper + constants.trust * constants.scatter**2
    logs = -0.5 * freedom * np.log(total)
    weight = np.exp(logs - logs.max())
    weight /= weight.sum()
    kept = weight > 1e-7
    weight = weight[kept] / weight[kept].sum()
    scatter = float(np.sqrt((weight @ total[kept]) / freedom))
    return AccuracyForecast(last, start[kept], plateau[kept], tau[kept], k[kept], weight, scatter, constants)


def _least_squares(y: FloatArray, g: FloatArray, plateau: FloatArray) -> tuple[FloatArray, FloatArray]:
    """2 x [B, C] the best start from 0 to 1 for [B, 1] plateaus and [C, P] rises, and its sum of squared residuals.

    The residual is y - start (1 - g) - plateau g, whose square is expanded into sums over the points.
    """
    rest = 1 - g
    rest_y, g_y, rest_g = rest @ y, g @ y, (rest * g).sum(axis=1)
    rest_rest, g_g = (rest**2).sum(axis=1), (g**2).sum(axis=1)
    start = np.clip((rest_y - plateau * rest_g) / rest_rest, 0.0, 1.0)
    of_start = start**2 * rest_rest - 2 * start * rest_y + 2 * start * plateau * rest_g
    return start, np.maximum(0.0, y @ y + of_start + plateau**2 * g_g - 2 * plateau * g_y)


def _weighted(values: FloatArray, weight: FloatArray) -> Quantiles:
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weight[order])
    places = np.minimum(np.searchsorted(below, QUANTILES), len(values) - 1)
    low, middle, high = (float(values[order[place]]) for place in places)
    return Quantiles(middle, low, high)


def _normal_mixture(means: FloatArray, weight: FloatArray, deviation: float) -> Quantiles:
    """Quantiles of normal distributions of one deviation around `means`, on a grid of WIDTH."""
    reach = int(4 * deviation / WIDTH)
    places = np.round(means / WIDTH).astype(np.int64) + reach
    mass = np.bincount(places, weights=weight, minlength=int(1 / WIDTH) + 2 * reach + 1)
    bell = np.exp(-0.5 * (np.arange(-reach, reach + 1) * WIDTH / max(deviation, WIDTH)) ** 2)
    below = np.convolve(mass, bell / bell.sum(), mode="same").cumsum()
    low, middle, high = (float(np.searchsorted(below, part) - reach) * WIDTH for part in QUANTILES)
    return Quantiles(middle, low, high)
