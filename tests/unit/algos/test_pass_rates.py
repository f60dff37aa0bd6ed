"""The Beta distribution of pass rates, by hand."""

import numpy as np
import pytest

from winnow.algos.pass_rates import LEAST, MOST, PassRates, fit_pass_rates


def test_under_a_uniform_rate_every_count_is_as_likely():
    rates = PassRates(1.0, 1.0)
    assert rates.of_counts(3) == pytest.approx([0.25] * 4)
    assert rates.flat(3) == pytest.approx(0.5)
    mean, square = rates.given(2)  # Beta(1, 3), Beta(2, 2), Beta(3, 1)
    assert mean == pytest.approx([1 / 4, 1 / 2, 3 / 4])
    assert square == pytest.approx([1 / 10, 3 / 10, 6 / 10])


def test_the_counts_of_two_rollouts_by_hand():
    rates = PassRates(2.0, 1.0)  # E p^2 = 1/2, E p = 2/3
    assert rates.of_counts(2) == pytest.approx([1 / 6, 1 / 3, 1 / 2])
    assert rates.mean == pytest.approx(2 / 3)


def test_the_fit_is_the_most_likely_one():
    right, of = [0, 0, 1, 3, 4, 4, 8, 0], [4, 4, 4, 4, 4, 4, 8, 0]
    found = fit_pass_rates(right, of)

    def likelihood(a, b):
        rates = PassRates(a, b)
        return sum(np.log(rates.of_counts(n)[k]) for k, n in zip(right, of, strict=True) if n)

    best = likelihood(found.a, found.b)
    for a, b in ((1.01, 1), (0.99, 1), (1, 1.01), (1, 0.99), (1.02, 1.02)):
        assert likelihood(found.a * a, found.b * b) < best


def test_counts_of_a_known_distribution_give_it_back():
    """As many groups of each count as Beta(0.5, 1.5) has of 100,000."""
    times = np.round(1e5 * PassRates(0.5, 1.5).of_counts(8)).astype(int)
    found = fit_pass_rates(np.repeat(np.arange(9), times), np.full(times.sum(), 8))
    assert (found.a, found.b) == pytest.approx((0.5, 1.5), rel=0.01)


@pytest.mark.parametrize("right", [[0, 0, 0], [8, 8, 8], [4, 4, 4], [0, 8, 8]])
def test_extremes_stay_within_the_bounds(right):
    found = fit_pass_rates(right, [8, 8, 8])
    for value in (found.a, found.b):
        assert LEAST * 0.999 <= value <= MOST * 1.001
    assert found.mean == pytest.approx(np.mean(right) / 8, abs=0.1)


def test_without_a_rollout_there_is_nothing_to_fit():
    with pytest.raises(ValueError, match="no group"):
        fit_pass_rates([0], [0])
