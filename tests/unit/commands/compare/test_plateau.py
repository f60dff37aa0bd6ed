"""The plateau of a baseline and whether it still rises, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from winnow.commands.compare.curve import Curve
from winnow.commands.compare.speed_up import is_share, plateau_of


def curves(*ys):
    return [Curve("a run", "0", {"steps": np.arange(len(y)) * 10.0}, {"m": np.array(y, float)}) for y in ys]


@pytest.mark.parametrize(
    ("y", "value", "gain"),
    [
        ([0.1, 0.2, 0.6, 0.6, 0.7, 0.8], 0.75, 0.1),  # the last two of six
        ([0.1, 0.2, 0.6, 0.6, 0.6, 0.64, 0.65], 0.63, 0.05),  # a line through the last three of seven
        ([0.5, 0.7], 0.6, 0.2),
        ([0.1, 0.2, 0.6, 0.5, 0.7, np.nan], 0.6, 0.2),  # the last two that were measured
    ],
)
def test_the_plateau_is_the_mean_of_the_last_third(y, value, gain):
    plateau = plateau_of(curves(y), "m")
    assert (plateau.value, plateau.gain) == pytest.approx((value, gain))
    assert plateau.level == pytest.approx(0.95 * value)
    assert plateau.bound == plateau.gain  # of one seed


def test_the_bound_is_students_t_of_the_seeds_gains():
    rising = plateau_of(curves([0.1, 0.6, 0.60], [0.1, 0.6, 0.62]), "m")  # gains 0 and 0.02: standard error 0.01
    assert rising.bound == pytest.approx(0.01 + 6.313752 * 0.01)
    assert rising.still_rising
    flat = plateau_of(curves(*([0.1, 0.6, 0.6 + gain] for gain in (0.002, 0.003, 0.004))), "m")
    assert flat.bound == pytest.approx(0.003 + 2.919986 * 0.001 / math.sqrt(3))
    assert not flat.still_rising


@pytest.mark.parametrize(("gain", "rising"), [(-0.1, False), (0.0099, False), (0.0101, True)])
def test_a_gain_of_more_than_one_point_is_rising(gain, rising):
    assert plateau_of(curves(*([0.1, 0.6, 0.6 + gain] for _ in range(2))), "m").still_rising is rising


def test_a_measure_that_is_no_share_may_gain_one_percent_of_its_plateau():
    lengths = curves([10, 200, 203], [10, 200, 203])
    assert not is_share(lengths, "m")
    assert plateau_of(lengths, "m", share=False).still_rising
    assert not plateau_of(curves([10, 200, 201.9]), "m", share=False).still_rising


def test_nothing_above_zero_is_no_level():
    assert plateau_of(curves([0, 0, 0]), "m").level is None


def test_one_evaluation_does_not_show_that_a_curve_is_flat():
    plateau = plateau_of(curves([0.5]), "m")
    assert math.isnan(plateau.gain)
    assert plateau.still_rising
