"""The Beta distribution of pass rates, by hand."""

import numpy as np
import pytest

from winnow.algos.planning import LEAST, MOST, PassRates, RatePoints, fit_pass_rates, flat_share


def test_under_a_uniform_rate_every_count_is_as_likely():
    rates = PassRates(1.0, 1.0)
    assert rates.of_counts(3) == pytest.approx([0.25] * 4)
    assert flat_share(rates, 3) == pytest.approx(0.5)
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
    with pytest.raises(ValueError, match="group"):
        fit_pass_rates([0], [0])


def test_points_are_a_mean_of_binomials():
    points = RatePoints(np.array([0.5, 1.0]))
    assert points.of_counts(2) == pytest.approx([1 / 8, 2 / 8, 5 / 8])
    mean, square = points.given(2)
    assert mean == pytest.approx([0.5, 0.5, (0.25 * 0.5 + 1) / 1.25])
    assert square == pytest.approx([0.25, 0.25, (0.25 * 0.25 + 1) / 1.25])


def test_a_shift_of_nothing_is_the_distribution_itself():
    rates = PassRates(2.0, 3.0)
    points = rates.shifted(0.0)
    assert points.of_counts(4) == pytest.approx(rates.of_counts(4), abs=2e-3)
    assert points.given(4)[0] == pytest.approx(rates.given(4)[0], abs=5e-3)


def test_a_way_goes_by_equal_steps_of_the_log_odds():
    start = PassRates(500.0, 500.0)  # about one rate: 0.5
    goal = 1 / (1 + np.exp(-2.0))  # log-odds 2
    means = [stage.mean for stage in start.towards(goal, 2)]
    assert np.log(np.array(means) / (1 - np.array(means))) == pytest.approx([0.5, 1.5], abs=0.01)


@pytest.mark.parametrize("mean", [0.3, 0.5, 1.0])
def test_a_shift_down_or_to_certainty_is_refused(mean):
    with pytest.raises(ValueError, match=r"0\.500"):
        PassRates(500.0, 500.0).towards(mean, 4)
