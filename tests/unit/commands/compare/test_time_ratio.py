"""Ratios of geometric means and their intervals; expected values by hand."""

from __future__ import annotations

import math

import pytest

from winnow.commands.compare.speed_up import SeedTime, time_ratio


def seeds(times, *, names="abcdefgh", endings=()):
    endings = endings or ["reached"] * len(times)
    return [
        SeedTime(name, ending, 5.0, False, {"steps": time})
        for time, name, ending in zip(times, names, endings, strict=False)
    ]


T_WELCH = 3.419770  # of 8 / 3 degrees of freedom


def powers(*exponents):
    return [2.0**exponent for exponent in exponents]


def test_the_same_seeds_are_compared_one_by_one():
    # by the logarithm of 2 the differences are 1, 2, 1: mean 4/3, standard error 1/3, t of 2 degrees 4.302653
    group = seeds([10, 10, 40])
    ratio = time_ratio(seeds([20, 40, 80]), group[::-1], "steps")
    assert ratio.paired
    assert ratio.ratio == pytest.approx(2 ** (4 / 3))
    assert (ratio.low, ratio.high) == pytest.approx((2 ** (4 / 3 - 4.302653 / 3), 2 ** (4 / 3 + 4.302653 / 3)))
    assert (ratio.baseline, ratio.group) == pytest.approx((40, 4000 ** (1 / 3)))
    assert not ratio.shows_difference  # from 0.93


def test_other_seeds_are_compared_by_their_means():
    # means 2 and 1; squared standard errors 2/2 and 3/3, so 4 / (1/1 + 1/2) degrees of freedom, t 3.420
    ratio = time_ratio(seeds(powers(1, 3)), seeds(powers(0, 0, 3), names="abc"), "steps")
    assert not ratio.paired
    assert ratio.ratio == pytest.approx(2)
    half = T_WELCH * math.sqrt(2)
    assert (ratio.low, ratio.high) == pytest.approx((2 ** (1 - half), 2 ** (1 + half)), rel=1e-5)


def test_an_interval_without_1_shows_a_difference():
    assert time_ratio(seeds([20, 21, 22]), seeds([10, 11, 10]), "steps").shows_difference
    assert not time_ratio(seeds([20, 21, 22]), seeds([20, 21, 22]), "steps").shows_difference  # from 1 to 1


@pytest.mark.parametrize("few", [["a"], [None]])
def test_one_seed_or_a_mean_curve_has_no_interval(few):
    ratio = time_ratio(seeds([20], names=few), seeds([10], names=few), "steps")
    assert ratio.ratio == pytest.approx(2)
    assert not ratio.has_interval
    assert not ratio.shows_difference


def test_a_seed_that_never_reached_the_level_leaves_a_bound():
    never = ("reached", "never")
    group = time_ratio(seeds([20, 20]), seeds([10, 40], endings=never), "steps")
    assert (group.baseline, group.at_most) == pytest.approx((20, 1))  # the second seed takes longer than 40
    assert all(map(math.isnan, (group.group, group.ratio, group.low, group.high, group.at_least)))
    baseline = time_ratio(seeds([10, 40], endings=never), seeds([10, 10]), "steps")
    assert baseline.at_least == pytest.approx(2)
    assert math.isnan(baseline.at_most)
    both = time_ratio(seeds([10, 40], endings=never), seeds([10, 40], endings=never), "steps")
    assert math.isnan(both.at_least)
    assert math.isnan(both.at_most)


def test_a_seed_that_began_above_the_level_bounds_the_other_side():
    early = ("reached", "at the first")
    ratio = time_ratio(seeds([20, 20]), seeds([10, 10], endings=early), "steps")
    assert ratio.at_least == pytest.approx(2)
    assert math.isnan(ratio.at_most)
    untrained = time_ratio(seeds([20, 20]), seeds([10, 0], endings=early), "steps")
    assert math.isnan(untrained.at_least)  # nothing is known of a time below 0


def test_an_axis_that_a_seed_lacks_has_no_ratio():
    assert time_ratio(seeds([20, 20]), seeds([10, 10]), "seconds") is None
    assert time_ratio(seeds([20, 20]), seeds([0.0, 10]), "steps") is None  # such as tokens before any are trained
