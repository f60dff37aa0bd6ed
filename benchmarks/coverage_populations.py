"""The populations of benchmarks/coverage.py: problems, a second model's pass rates on them, and training seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from winnow.records import FloatArray


@dataclass(frozen=True)
class Population:
    """Pass rates of problems: 0 or 1 for some, otherwise Beta(a, b)."""

    zeros: float
    ones: float
    a: float
    b: float

    def draw(self, rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
        kind, rate = rng.random(shape), rng.beta(self.a, self.b, shape)
        return np.where(kind < self.zeros, 0.0, np.where(kind > 1 - self.ones, 1.0, rate))

    @property
    def mean(self) -> float:
        return self.pass_at(1)

    def pass_at(self, k: int) -> float:
        """1 - E (1 - r)^k."""
        failing = float(np.prod([(self.b + j) / (self.a + self.b + j) for j in range(k)]))
        return self.ones + (1 - self.zeros - self.ones) * (1 - failing)


POPULATIONS = {
    "0.03, most never solved": Population(0.80, 0.00, 0.6, 3.4),
    "0.03, a few always solved": Population(0.96, 0.02, 1.0, 1.0),
    "0.03, smooth": Population(0.00, 0.00, 0.3, 9.7),
    "0.10": Population(0.60, 0.02, 0.5, 2.0),
    "0.20": Population(0.40, 0.05, 0.6, 1.6),
    "0.35": Population(0.30, 0.15, 0.7, 1.2),
    "0.50, two camps": Population(0.25, 0.25, 0.8, 0.8),
    "0.50, smooth": Population(0.00, 0.00, 2.0, 2.0),
    "0.70": Population(0.05, 0.45, 1.0, 1.0),
    "0.90": Population(0.02, 0.75, 2.0, 1.0),
    "0.97, most always solved": Population(0.00, 0.80, 3.0, 0.5),
}
AVERAGED = {
    "low": ("0.10", "0.03, most never solved", "0.10", "0.03, most never solved", "0.20"),
    "mixed": ("0.70", "0.35", "0.35", "0.10", "0.50, two camps"),
    "high": ("0.90", "0.70", "0.90", "0.35", "0.70"),
    "smooth": ("0.50, smooth",) * 5,
    "very low": ("0.03, most never solved", "0.03, a few always solved", "0.03, smooth") + ("0.03, smooth",) * 2,
    "very high": ("0.97, most always solved", "0.97, most always solved", "0.90", "0.97, most always solved", "0.90"),
}

Change = Callable[
    [np.random.Generator, FloatArray, Population], FloatArray
]  # the pass rates of another model, from those of one


def unchanged(rng: np.random.Generator, rates: FloatArray, population: Population) -> FloatArray:
    return rates


def some_better(rng: np.random.Generator, rates: FloatArray, population: Population) -> FloatArray:
    """Half of the problems are a tenth nearer to 1: mean difference (1 - r) / 20."""
    return np.where(rng.random(rates.shape) < 0.5, rates + (1 - rates) / 10, rates)


def some_turned(rng: np.random.Generator, rates: FloatArray, population: Population) -> FloatArray:
    """A tenth of the problems is solved always (4 of 5) or never: mean difference 0.08 - r / 10."""
    turned = np.where(rng.random(rates.shape) < 0.8, 1.0, 0.0)
    return np.where(rng.random(rates.shape) < 0.1, turned, rates)


def up_and_down(rng: np.random.Generator, rates: FloatArray, population: Population) -> FloatArray:
    """Every problem is a fifth nearer to 1 or a tenth nearer to 0: mean difference (1 - r) / 10 - r / 20."""
    return np.where(rng.random(rates.shape) < 0.5, rates + (1 - rates) / 5, rates * 0.9)


def better(by: float, rng: np.random.Generator, rates: FloatArray, population: Population) -> FloatArray:
    """Every problem is nearer to 1 by the same share: mean difference `by`."""
    return rates + (1 - rates) * by / (1 - population.mean)


def redrawn(rng: np.random.Generator, rates: FloatArray, population: Population) -> FloatArray:
    """An independent model with the same mean."""
    return population.draw(rng, (rates.shape[0], rates.shape[1]))


def few_won_many_lost(rng: np.random.Generator, rates: FloatArray, population: Population) -> FloatArray:
    """A few problems are always solved and the others a little less often: mean difference 0, skewed."""
    won = min(0.05, population.mean / 2)
    less = won * (1 - population.mean) / ((1 - won) * population.mean)
    return np.where(rng.random(rates.shape) < won, 1.0, rates * (1 - less))


CHANGES: Mapping[Change, Callable[[float], float]] = {
    unchanged: lambda mean: 0.0,
    some_better: lambda mean: (1 - mean) / 20,
    some_turned: lambda mean: 0.08 - mean / 10,
    up_and_down: lambda mean: (1 - mean) / 10 - mean / 20,
}
PAIRED = ("0.03, most never solved", "0.10", "0.35", "0.50, smooth", "0.70", "0.97, most always solved")


def collapsing(chance: float, rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    """The result of a seed that collapses is ten deviations below the others."""
    return rng.normal(size=shape) - 10.0 * (rng.random(shape) < chance)


SEEDS: Mapping[str, tuple[Callable[[np.random.Generator, tuple[int, int]], FloatArray], float]] = {
    "normal": (lambda rng, shape: rng.normal(size=shape), 0.0),
    "uniform": (lambda rng, shape: rng.random(shape), 0.5),
    "heavy tails, t with 3": (lambda rng, shape: rng.standard_t(3, shape), 0.0),
    "skewed, exponential": (lambda rng, shape: -rng.exponential(size=shape), -1.0),
    "two camps of 4 deviations": (lambda rng, shape: rng.normal(size=shape) + 4.0 * rng.integers(0, 2, shape), 2.0),
    "1 in 10 collapses": (partial(collapsing, 0.1), -1.0),
    "1 in 4 collapses": (partial(collapsing, 0.25), -2.5),
}
