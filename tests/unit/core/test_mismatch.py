"""The mismatch of engine and policy, and the effect of a correction, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from winnow.core.mismatch import CorrectionEffect, Mismatch, effective_sample_size
from winnow.metrics import check


def added(ratios, advantages, index):
    """The mismatch of tokens with these p_policy / p_engine."""
    found = Mismatch()
    found.add(np.array(index, dtype=np.int64), np.log(ratios), np.array(advantages))
    return found


def test_the_numbers_of_two_rollouts():
    """Rollouts with products 2 x 2 = 4 and 1/2, and advantages 1 and -2."""
    metrics = added([2.0, 2.0, 0.5], [1.0, 1.0, -2.0], [0, 0, 1]).metrics()
    two = math.log(2)
    assert metrics["policy/mismatch_kl"] == pytest.approx((2 * (2 - 1 - two) + (0.5 - 1 + two)) / 3)
    assert metrics["policy/effective_sample_size"] == pytest.approx(4.5**2 / (2 * (16 + 0.25)))
    assert metrics["policy/engine_lag"] == pytest.approx((2 * two + two) / 2)
    assert metrics["policy/engine_lag_sem"] == pytest.approx(two / 2)  # deviations of log(2) / 2 from the mean
    check(metrics)


def test_an_engine_that_samples_what_is_trained():
    metrics = added([1.0] * 3, [1.0, -1.0, 1.0], [0, 1, 2]).metrics()
    assert metrics == {
        "policy/mismatch_kl": 0.0,
        "policy/effective_sample_size": 1.0,
        "policy/engine_lag": 0.0,
        "policy/engine_lag_sem": 0.0,
    }


def test_a_difference_without_a_direction_is_no_lag():
    """The policy gives each rollout twice the engine's probability, one better and one worse than average."""
    metrics = added([2.0, 2.0], [1.0, -1.0], [0, 1]).metrics()
    assert metrics["policy/engine_lag"] == pytest.approx(0.0)
    assert metrics["policy/mismatch_kl"] == pytest.approx(1 - math.log(2))


def test_a_rollout_without_a_trained_token_does_not_count():
    """One rollout remains, the second of its micro-batch."""
    metrics = added([2.0], [1.0], [1]).metrics()
    assert metrics["policy/engine_lag"] == pytest.approx(math.log(2))
    assert "policy/engine_lag_sem" not in metrics
    assert metrics["policy/effective_sample_size"] == 1.0


def test_nothing_trained_has_no_metrics():
    assert Mismatch().metrics() == {}
    assert added([], [], []).metrics() == {}


def test_ranks_together_are_one():
    whole = added([2.0, 2.0, 0.5], [1.0, 1.0, -2.0], [0, 0, 1])
    parts = [added([2.0, 2.0], [1.0, 1.0], [0, 0]), added([0.5], [-2.0], [0])]
    parts[0].merge(parts)
    assert parts[0].metrics() == pytest.approx(whole.metrics())


@pytest.mark.parametrize(
    ("log_ratios", "size"), [([5.0, 5.0, 5.0], 1.0), ([2000.0, 0.0], 0.5), ([0.0, math.log(3)], 0.8)]
)
def test_the_effective_sample_size(log_ratios, size):
    """(1 + 3)^2 / (2 (1 + 9)) = 0.8; exp(2000) overflows, and its rollout has all of the weight."""
    assert effective_sample_size(np.array(log_ratios)) == pytest.approx(size)


def effect(importance, acted, index):
    found = CorrectionEffect()
    found.add(np.array(index), np.array(importance), np.array(acted, dtype=np.float64))
    return found


def test_what_a_correction_did():
    """Five tokens of three rollouts: one token masked, two truncated, in two of the rollouts."""
    found = effect([0.0, 2.0, 0.5, 2.0, 1.0], [True, True, False, True, False], [0, 0, 1, 1, 2])
    metrics = found.metrics()
    assert metrics == pytest.approx({
        "correction/importance_mean": 1.1,
        "correction/tokens_masked": 0.2,
        "correction/tokens_truncated": 0.4,
        "correction/rollouts_masked": 1 / 3,
        "correction/rollouts_truncated": 2 / 3,
        "budget/tokens_masked": 1.0,
    })  # fmt: skip
    check(metrics)


def test_an_importance_that_is_0_by_itself_is_not_masked():
    assert effect([0.0, 1.0], [False, False], [0, 1]).metrics()["correction/tokens_masked"] == 0


def test_effects_of_ranks_add_up():
    parts = [effect([0.0, 2.0], [True, True], [0, 0]), effect([0.5, 2.0, 1.0], [False, True, False], [0, 0, 1])]
    parts[0].merge(parts)
    assert (
        parts[0].metrics()
        == effect([0.0, 2.0, 0.5, 2.0, 1.0], [True, True, False, True, False], [0, 0, 1, 1, 2]).metrics()
    )
    assert CorrectionEffect().metrics() == {}
