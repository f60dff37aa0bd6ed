"""The paired test, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from winnow.algos.intervals import paired_test
from winnow.records import FloatArray


def test_one_sample_a_problem_is_mcnemars_mid_p():
    """5 won, 1 lost: of 64 signs 2 * 1 are farther and 2 * 6 as far: (2 + 12 / 2) / 64."""
    first = np.array([1, 1, 1, 1, 1, 0, 1, 0.0])
    second = np.array([0, 0, 0, 0, 0, 1, 1, 0.0])
    assert paired_test(first, second, seed=0) == (pytest.approx(8 / 64), pytest.approx(4 / 8), 5, 1, 2)


def test_the_sizes_of_the_differences_count():
    """1, 1/2 and 1/4 all won: only all plus and all minus are as far, and none farther: (2 / 2) / 8."""
    result = paired_test(np.array([1, 0.75, 0.25]), np.array([0, 0.25, 0]), seed=0)
    assert result == (pytest.approx(1 / 8), pytest.approx(1.75 / 3), 3, 0, 0)


def test_models_that_do_not_differ():
    assert paired_test(np.array([1.0, 0.0]), np.array([1.0, 0.0]), seed=0) == (1.0, 0.0, 0, 0, 2)
    assert paired_test(np.array([1.0, 0.0]), np.array([0.0, 1.0]), seed=0).p_value == 1.0


def test_the_order_of_the_models_only_turns_the_sign():
    first, second = np.array([1, 0.5, 0.25, 0]), np.array([0, 0.25, 0.5, 0])
    one, other = paired_test(first, second, seed=0), paired_test(second, first, seed=0)
    assert (one.p_value, one.difference, one.won) == (other.p_value, -other.difference, other.lost)


def test_differences_without_a_common_step_are_drawn_by_the_seed():
    """The square root of 1/2 is no multiple of a step; the test is that of 8 problems won out of 10 all the same."""
    first, second = np.array([np.sqrt(0.5)] * 8 + [0.0] * 2), np.array([0.0] * 8 + [np.sqrt(0.5)] * 2)
    exact = (2 * (1 + 10) + 2 * 45 / 2) / 1024
    drawn = paired_test(first, second, seed=0)
    assert drawn.p_value == pytest.approx(exact, abs=0.003)  # four standard errors
    assert drawn == paired_test(first, second, seed=0)
    assert drawn.p_value != paired_test(first, second, seed=1).p_value


def test_values_that_cannot_be_compared_are_refused():
    for second in ([1.0, 0.0, 1.0], [1.0, np.nan], [1.0]):
        with pytest.raises(ValueError, match="paired_test"):
            paired_test(np.array([1.0, 0.0]), np.array(second), seed=0)


def false_alarms(first: FloatArray, second: FloatArray) -> float:
    return float(np.mean([paired_test(a, b, seed=0).p_value <= 0.05 for a, b in zip(first, second, strict=True)]))


@pytest.mark.parametrize("samples", [1, 4])
def test_false_alarms_of_equal_models(samples):
    """At most 6% of 2,000 evaluations of 40 problems (standard error 0.5%), of the same pass rates and of others.

    McNemar's exact test, which wastes power, raises 2.5% to 3% for one sample.
    """
    rng = np.random.default_rng(1)
    rates, others = rng.random((2, 2000, 40))
    for second in (rates, others):
        found = false_alarms(*(rng.binomial(samples, r) / samples for r in (rates, second)))
        assert 0.032 <= found <= 0.06
