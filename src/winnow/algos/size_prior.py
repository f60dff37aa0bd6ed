"""What is supposed of a task that no run has tried: how often its prompts are solved, and how long rollouts are.

A world is one mixture of pass rates. Its prompts have log-odds around a middle, with a spread; some are never solved,
and some always. Middle, spread and shares are drawn, so that a plan has to hold for many tasks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from winnow.algos.costs import StepWork
from winnow.algos.reward_mixture import RewardMixture, atoms_of
from winnow.algos.step_plan import StepStatistics
from winnow.errors import ConfigError
from winnow.records import FloatArray

DOUBT = 1.0  # standard deviation of the middle's log-odds
SPREADS = (0.5, 2.5)  # standard deviation of the prompts' log-odds, drawn between these
NEVER, ALWAYS = (1.0, 5.0), (1.0, 9.0)  # Beta distributions of the shares of prompts that are never, or always, solved


@dataclass(frozen=True)
class Prior:
    """What is supposed."""

    pass_rate: float  # median over the prompts that are sometimes solved, in the middle of the worlds
    length: float  # tokens of a rollout

    def __post_init__(self) -> None:
        if not 0 < self.pass_rate < 1:
            raise ConfigError(
                f"a pass rate of {self.pass_rate:g} is supposed",
                remedy="give the pass rate of a middling prompt that is sometimes solved, between 0 and 1",
                code="config.value",
            )
        if not (math.isfinite(self.length) and self.length >= 1):
            raise ConfigError(
                f"a length of {self.length:g} tokens is supposed",
                remedy="give the mean tokens of a rollout, 1 or more",
                code="config.value",
            )

    def worlds(self, count: int, seed: int) -> Iterator[StepStatistics]:
        """Statistics of drawn worlds. Their work is that of one rollout, as the sizes of a step are not known yet."""
        rng, atoms = np.random.default_rng(seed), atoms_of(np.array([0.0, 1.0]))
        inner = atoms.probabilities[:-2, 1]
        odds = np.log(inner) - np.log1p(-inner)
        work, lasting = StepWork(1, 1.0, self.length, 1.0, self.length), np.ones(max(1, round(self.length)))
        for _ in range(count):
            middle = math.log(self.pass_rate / (1 - self.pass_rate)) + DOUBT * rng.standard_normal()
            weights: FloatArray = np.exp(-0.5 * ((odds - middle) / rng.uniform(*SPREADS)) ** 2)
            never, always = rng.beta(*NEVER), rng.beta(*ALWAYS)
            rest = max(0.01, 1 - never - always)  # without any, no setting makes progress
            every = np.concatenate([rest * weights / weights.sum(), [never, always]])
            yield StepStatistics(RewardMixture(atoms, every / every.sum()), work, {}, lasting)
