"""The closed form of benchmarks/allocator_variance.py against every possible draw."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from allocator_variance import u_statistic, variances

from winnow.algos.advantage import rloo
from winnow.testing import group_of


@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_variance_over_all_draws_from_a_pool(n):
    """A pool of 4 rollouts with gradients of 2 parameters, all draws of n with replacement."""
    rewards = np.array([1.0, 0.0, 0.0, 1.0])
    gradients = np.array([[1.0, 2.0], [-0.5, 0.3], [2.0, -1.0], [0.7, 0.1]])
    estimates = []
    for places in itertools.product(range(4), repeat=n):
        chosen = list(places)
        (advantages,) = rloo([group_of(rewards[chosen].tolist(), keep=range(n))])
        estimates.append(advantages @ gradients[chosen] / n)
    estimates = np.array(estimates)
    of_one, of_two = u_statistic(rewards, gradients @ gradients.T)
    expected = estimates.var(axis=0).sum()
    assert variances(np.array([of_one]), np.array([of_two]), np.array([n])) == pytest.approx([expected])
