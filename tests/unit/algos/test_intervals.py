"""Intervals, by hand and by coverage."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from winnow.algos.intervals import Interval, of_average, of_difference, over_problems, over_seeds
from winnow.records import FloatArray


def test_right_and_wrong_are_wilsons_score_with_students_t():
    """3 of 4 and t = 3.18245. With a fifth of a problem more at 0 and at 1 the variance is p (1 - p) / 3.4 and so n_eff
    3.4: (0.75 + 10.128 / 6.8) / 3.97882 plus and minus 3.18245 / 3.97882 sqrt(0.1875 / 3.4 + 10.128 / (4 * 3.4^2)).
    """
    assert over_problems(np.array([0.0, 1, 1, 1])) == pytest.approx((0.56283 - 0.41882, 0.56283 + 0.41882), abs=2e-5)


def test_a_difference_is_students_t_of_pairs():
    """Half won and half lost by 1/2, a twentieth of a problem by 1 each: the mean square is (8 / 4 + 2 / 20) / 8.1."""
    half = 2.36462 * (2.1 / 8.1 / 7.1) ** 0.5
    first, second = np.array([1.0, 0.5] * 4), np.array([0.5, 1.0] * 4)
    assert of_difference(first, second) == pytest.approx((-half, half), abs=1e-5)


def test_another_level_is_wider_or_narrower():
    values = np.array([0.0, 0.25, 1.0, 0.5, 0.75])
    narrow, usual, wide = (over_problems(values, level) for level in (0.5, 0.95, 0.99))
    assert wide.low < usual.low < narrow.low < narrow.high < usual.high < wide.high


def test_over_three_seeds_it_is_students_t():
    """Mean 2, deviation 1 (ddof 1); the quantile of 2 degrees of freedom is 4.3027."""
    assert over_seeds(np.array([1.0, 2.0, 3.0])) == pytest.approx(
        (2 - 4.30265 / 3**0.5, 2 + 4.30265 / 3**0.5), abs=1e-5
    )


def test_one_seed_gives_nan():
    assert np.isnan(over_seeds(np.array([0.7]))).all()


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_problems_that_are_all_alike_still_leave_room(value):
    low, high = over_problems(np.full(30, value))
    assert 0 <= low <= value <= high <= 1
    assert 0.03 < high - low < 0.2


def test_one_problem_gives_the_widest_interval():
    assert over_problems(np.array([0.4])) == (0, 1)
    assert of_difference(np.array([0.4]), np.array([0.1])) == (-1, 1)
    assert np.isnan(of_average([])).all()


def test_a_value_that_is_no_number_is_not_hidden():
    values = np.array([0.5, np.nan, 1.0])
    assert np.isnan([over_problems(values), of_average([values]), of_difference(values, values)]).all()


def test_an_average_of_one_benchmark_is_its_own_interval():
    values = np.array([0.0, 0.25, 1.0, 0.5, 0.75])
    assert of_average([values]) == pytest.approx(over_problems(values))


def held(drawn: Iterable[FloatArray], interval: Callable[[FloatArray], Interval], truth: float) -> float:
    """The share of intervals that hold the truth."""
    return float(np.mean([low <= truth <= high for low, high in map(interval, drawn)]))


def pass_rates(rng: np.random.Generator, *shape: int) -> FloatArray:
    """Of problems that are never solved (3 of 10), always (1 of 10), or at any rate: 0.4 on average."""
    kind = rng.random(shape)
    return np.where(kind < 0.3, 0.0, np.where(kind > 0.9, 1.0, rng.random(shape)))


# Of each the standard error is 0.0034 for 4,000 evaluations; a forgotten square root or a wrong ddof is further off.


@pytest.mark.parametrize(("problems", "samples"), [(40, 1), (40, 8), (500, 1), (500, 8)])
def test_coverage_over_problems(problems, samples):
    rng = np.random.default_rng(0)
    values = rng.binomial(samples, pass_rates(rng, 4000, problems)) / samples
    assert held(values, over_problems, 0.4) == pytest.approx(0.955, abs=0.015)


def test_coverage_where_hardly_any_problem_is_solved():
    """Of 500, 3 in 100, one sample each: normal and t intervals hold it in 92 of 100 cases."""
    values = np.random.default_rng(0).binomial(1, 0.03, (4000, 500)).astype(np.float64)
    assert held(values, over_problems, 0.03) == pytest.approx(0.95, abs=0.01)


@pytest.mark.parametrize("seeds", [3, 5])
def test_coverage_over_seeds(seeds):
    values = np.random.default_rng(0).normal(2.0, 3.0, (4000, seeds))
    assert held(values, over_seeds, 2.0) == pytest.approx(0.95, abs=0.01)


def test_coverage_of_an_average():
    """Of one benchmark at 0.4 and two at 0.1."""
    rng = np.random.default_rng(0)
    values = rng.binomial(4, pass_rates(rng, 2000, 150)) / 4
    values[:, 80:] /= 4
    share = held(values, lambda row: of_average([row[:80], row[80:110], row[110:]]), 0.2)
    assert share == pytest.approx(0.955, abs=0.015)


def test_coverage_of_a_difference():
    """A model that is better by a tenth of what is missing: by 0.06. The same problems make it narrow."""
    rng = np.random.default_rng(0)
    rates = pass_rates(rng, 4000, 200)
    first, second = (rng.binomial(4, r) / 4 for r in (rates + (1 - rates) / 10, rates))
    pairs = np.stack([first, second], axis=1)
    assert held(pairs, lambda pair: of_difference(*pair), 0.06) == pytest.approx(0.95, abs=0.012)
