"""Estimates of pass rates by hand, and against the Beta distribution on a grid."""

from __future__ import annotations

import numpy as np
import pytest

from winnow.budget.pass_rates import (
    add_visit,
    brier_score,
    posterior_mean,
    posterior_quantile,
    posterior_sd,
    rates,
)

CORRECT, TRIALS = np.array([0.0, 0.0, 3.0, 8.0]), np.array([0.0, 8.0, 4.0, 8.0])


def test_rates_are_shares():
    assert rates(CORRECT, TRIALS) == pytest.approx([np.nan, 0, 0.75, 1], nan_ok=True)
    assert posterior_mean(CORRECT, TRIALS, prior=0) == pytest.approx([np.nan, 0, 0.75, 1], nan_ok=True)


def test_earlier_visits_count_less():
    """4 of 8, then 1 of 4, then 2 of 2, at a decay of 1/2: correct 4/4 + 1/2 + 2, trials 8/4 + 4/2 + 2."""
    correct, trials = np.array([4.0]), np.array([8.0])
    for new_correct, new_trials in ((1.0, 4.0), (2.0, 2.0)):
        correct, trials = add_visit(correct, trials, np.array([new_correct]), np.array([new_trials]), decay=0.5)
    assert (correct.tolist(), trials.tolist()) == ([3.5], [6.0])


def test_the_posterior_of_jeffreys_s_prior():
    """Beta(1/2, 1/2), Beta(1/2, 17/2), Beta(7/2, 3/2), Beta(17/2, 1/2)."""
    assert posterior_mean(CORRECT, TRIALS) == pytest.approx([1 / 2, 0.5 / 9, 3.5 / 5, 8.5 / 9])
    # a b / ((a + b)^2 (a + b + 1))
    variance = [0.25 / (1 * 2), 0.5 * 8.5 / (81 * 10), 3.5 * 1.5 / (25 * 6), 8.5 * 0.5 / (81 * 10)]
    assert posterior_sd(CORRECT, TRIALS) ** 2 == pytest.approx(variance)


def test_a_quantile_against_the_density_on_a_grid():
    grid = (np.arange(200_000) + 0.5) / 200_000
    density = grid**3.0 * (1 - grid) ** 1.0  # Beta(4, 2): 3 of 4 with the uniform prior
    expected = grid[np.searchsorted(np.cumsum(density) / density.sum(), 0.9)]
    (found,) = posterior_quantile(np.array([3.0]), np.array([4.0]), 0.9, prior=1.0)
    assert found == pytest.approx(expected, abs=1e-5)


def test_the_brier_score_is_a_mean_over_rollouts():
    """p = 1/2: 4 rollouts at 1/4; p = 0.9: one right at 0.01, one wrong at 0.81; the third has no estimate."""
    score = brier_score(np.array([0.5, 0.9, np.nan]), np.array([1.0, 1.0, 2.0]), np.array([4.0, 2.0, 2.0]))
    assert score == pytest.approx((4 * 0.25 + 0.01 + 0.81) / 6)
    assert np.isnan(brier_score(np.array([np.nan, 0.5]), np.array([1.0, 0.0]), np.array([4.0, 0.0])))


def test_the_true_pass_rates_have_the_smallest_expected_score():
    """Expected score of the estimate q where the rate is p = 0.3: p (1 - q)^2 + (1 - p) q^2."""
    scores = {q: brier_score(np.array([q]), np.array([3.0]), np.array([10.0])) for q in (0.0, 0.2, 0.3, 0.4, 1.0)}
    assert min(scores, key=scores.get) == 0.3
    assert scores[0.3] == pytest.approx(0.3 * 0.7)


@pytest.mark.parametrize(
    "estimate",
    [
        lambda: rates(np.array([2.0]), np.array([1.0])),
        lambda: rates(np.array([-1.0]), np.array([1.0])),
        lambda: rates(np.array([1.0]), np.array([1.0, 2.0])),
        lambda: posterior_mean(np.array([1.0]), np.array([1.0]), prior=-1.0),
        lambda: posterior_sd(np.array([1.0]), np.array([1.0]), prior=0.0),
        lambda: posterior_quantile(np.array([1.0]), np.array([1.0]), 1.5),
        lambda: add_visit(np.array([1.0]), np.array([1.0]), np.array([1.0]), np.array([1.0]), decay=1.5),
    ],
)
def test_counts_that_cannot_be_are_refused(estimate):
    with pytest.raises(ValueError, match=r"."):
        estimate()
