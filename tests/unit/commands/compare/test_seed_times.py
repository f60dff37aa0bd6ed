"""The time at which a seed reaches a level; expected values by hand."""

from __future__ import annotations

import numpy as np
import pytest

from winnow.commands.compare.curve import Curve
from winnow.commands.compare.speed_up import seed_time, smoothed


def curve(y, **x):
    x = x or {"steps": list(range(len(y)))}
    arrays = {axis: np.array(values, float) for axis, values in x.items()}
    return Curve("a run", "0", arrays, {"accuracy": np.array(y, float)})


@pytest.mark.parametrize(
    ("y", "means"),
    [
        ([0.1, 0.4, 0.7, 0.7], [0.25, 0.4, 0.6, 0.7]),
        ([0.2, 0.4], [0.3, 0.3]),
        ([0.2], [0.2]),
    ],
)
def test_an_evaluation_is_averaged_with_the_neighbours_that_it_has(y, means):
    assert smoothed(np.array(y)) == pytest.approx(means)


def test_the_crossing_is_interpolated_on_every_axis():
    time = seed_time(curve([0.1, 0.4, 0.7, 0.7], steps=[0, 2, 4, 6], seconds=[0, 10, 30, 60]), "accuracy", 0.57)
    assert (time.ending, time.at_last) == ("reached", False)
    assert time.evaluations == pytest.approx(1.85)  # 0.57 is 0.85 of the way from 0.4 to 0.6
    assert time.x == pytest.approx({"steps": 3.7, "seconds": 27.0})


def test_the_line_starts_at_the_highest_mean_before():
    # means 0.4 0.3 0.3 0.3 0.5 0.7; the running maximum goes from 0.4 to 0.5
    time = seed_time(curve([0.1, 0.7, 0.1, 0.1, 0.7, 0.7]), "accuracy", 0.45)
    assert time.x["steps"] == pytest.approx(3.5)


def test_a_level_that_is_never_reached_has_the_end_of_the_curve():
    time = seed_time(curve([0.1, 0.4, 0.4]), "accuracy", 0.57)
    assert (time.ending, time.reached, time.x) == ("never", False, {"steps": 2})


def test_a_seed_above_the_level_at_its_first_evaluation_has_no_time():
    time = seed_time(curve([0.6, 0.6, 0.7], steps=[5, 10, 15]), "accuracy", 0.57)
    assert (time.ending, time.reached, time.x) == ("at the first", False, {"steps": 5})


def test_a_crossing_at_the_last_evaluation_is_marked():
    assert seed_time(curve([0.1, 0.1, 0.1, 0.7]), "accuracy", 0.35).at_last  # means 0.1 0.1 0.3 0.4
    assert not seed_time(curve([0.1, 0.1, 0.7, 0.7]), "accuracy", 0.35).at_last


def test_an_evaluation_that_was_not_measured_is_skipped():
    time = seed_time(curve([0.1, np.nan, 0.4, 0.7, 0.7], steps=[0, 1, 2, 4, 6]), "accuracy", 0.57)
    assert time.x["steps"] == pytest.approx(3.7)


def test_sums_that_rounding_leaves_below_the_level_have_reached_it():
    third = [0.1, 0.7, 0.7, 0.7]
    assert seed_time(curve(third), "accuracy", (0.7 + 0.7 + 0.7) / 3 + 1e-16).reached
