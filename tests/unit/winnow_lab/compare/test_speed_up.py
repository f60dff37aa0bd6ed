"""The times to a level, the plateau that sets it, the ratio of two times, and the speed-up of PODS."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest
from public_curves import as_csv, public_curves
from typer.testing import CliRunner

from winnow.commands import app
from winnow_lab.compare.curve import Curve
from winnow_lab.compare.speed_up import SeedTime, is_share, plateau_of, seed_time, smoothed, speed_up, time_ratio


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
    for accuracies, steps, level in (([0.1, 0.9, 0.9], [10, 20, 30], 0.45), ([0.0, 0.6], [10, 20], 0.285)):
        time = seed_time(curve(accuracies, steps=steps), "accuracy", level)  # between the first two evaluations
        assert (time.ending, time.x) == ("at the first", {"steps": 20})


def test_a_crossing_at_the_last_evaluation_is_marked():
    assert seed_time(curve([0.1, 0.1, 0.1, 0.7]), "accuracy", 0.35).at_last  # means 0.1 0.1 0.3 0.4
    assert not seed_time(curve([0.1, 0.1, 0.7, 0.7]), "accuracy", 0.35).at_last


def test_an_evaluation_that_was_not_measured_is_skipped():
    time = seed_time(curve([0.1, np.nan, 0.4, 0.7, 0.7], steps=[0, 1, 2, 4, 6]), "accuracy", 0.57)
    assert time.x["steps"] == pytest.approx(3.7)


def test_sums_that_rounding_leaves_below_the_level_have_reached_it():
    third = [0.1, 0.7, 0.7, 0.7]
    assert seed_time(curve(third), "accuracy", (0.7 + 0.7 + 0.7) / 3 + 1e-16).reached


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


def test_a_curve_that_falls_is_not_rising_however_uncertain():
    falling = plateau_of(curves([0.1, 0.7, 0.60], [0.1, 0.6, 0.65]), "m")  # gains -0.1 and 0.05
    assert falling.gain == pytest.approx(-0.025)
    assert falling.bound > 0.01
    assert not falling.still_rising


@pytest.mark.parametrize(("low", "unstable"), [(0.45, False), (0.44, True)])
def test_a_baseline_is_unstable_by_the_mean_largest_fall_of_its_smoothed_seeds(low, unstable):
    one = [0.0, 0.6, 0.6, 0.6, low, low, low, 0.6]  # means of three: 0.6 at the highest, `low` at the lowest
    plateau = plateau_of(curves(one, [0.0, 0.6, 0.6, 0.6, 0.65, 0.65, 0.65, 0.65], [0.6] * 8), "m")
    assert plateau.fall == pytest.approx((0.6 - low) / 3)
    assert plateau.unstable is unstable


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


def seeds_at(times, *, names="abcdefgh", endings=()):
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
    group = seeds_at([10, 10, 40])
    ratio = time_ratio(seeds_at([20, 40, 80]), group[::-1], "steps")
    assert ratio.paired
    assert ratio.ratio == pytest.approx(2 ** (4 / 3))
    assert (ratio.low, ratio.high) == pytest.approx((2 ** (4 / 3 - 4.302653 / 3), 2 ** (4 / 3 + 4.302653 / 3)))
    assert (ratio.baseline, ratio.group) == pytest.approx((40, 4000 ** (1 / 3)))
    assert not ratio.shows_difference  # from 0.93


def test_other_seeds_are_compared_by_their_means():
    # means 2 and 1; squared standard errors 2/2 and 3/3, so 4 / (1/1 + 1/2) degrees of freedom, t 3.420
    ratio = time_ratio(seeds_at(powers(1, 3)), seeds_at(powers(0, 0, 3), names="abc"), "steps")
    assert not ratio.paired
    assert ratio.ratio == pytest.approx(2)
    half = T_WELCH * math.sqrt(2)
    assert (ratio.low, ratio.high) == pytest.approx((2 ** (1 - half), 2 ** (1 + half)), rel=1e-5)


def test_an_interval_without_1_shows_a_difference():
    assert time_ratio(seeds_at([20, 21, 22]), seeds_at([10, 11, 10]), "steps").shows_difference
    assert not time_ratio(seeds_at([20, 21, 22]), seeds_at([20, 21, 22]), "steps").shows_difference  # from 1 to 1


@pytest.mark.parametrize("few", [["a"], [None]])
def test_one_seed_or_a_mean_curve_has_no_interval(few):
    ratio = time_ratio(seeds_at([20], names=few), seeds_at([10], names=few), "steps")
    assert ratio.ratio == pytest.approx(2)
    assert not ratio.has_interval
    assert not ratio.shows_difference


def test_a_seed_that_never_reached_the_level_leaves_a_bound():
    never = ("reached", "never")
    group = time_ratio(seeds_at([20, 20]), seeds_at([10, 40], endings=never), "steps")
    assert (group.baseline, group.at_most) == pytest.approx((20, 1))  # the second seed takes longer than 40
    assert all(map(math.isnan, (group.group, group.ratio, group.low, group.high, group.at_least)))
    baseline = time_ratio(seeds_at([10, 40], endings=never), seeds_at([10, 10]), "steps")
    assert baseline.at_least == pytest.approx(2)
    assert math.isnan(baseline.at_most)
    both = time_ratio(seeds_at([10, 40], endings=never), seeds_at([10, 40], endings=never), "steps")
    assert math.isnan(both.at_least)
    assert math.isnan(both.at_most)


def test_a_seed_that_began_above_the_level_bounds_the_other_side():
    early = ("reached", "at the first")
    ratio = time_ratio(seeds_at([20, 20]), seeds_at([10, 10], endings=early), "steps")
    assert ratio.at_least == pytest.approx(2)
    assert math.isnan(ratio.at_most)
    untrained = time_ratio(seeds_at([20, 20]), seeds_at([10, 0], endings=early), "steps")
    assert math.isnan(untrained.at_least)  # nothing is known of a time below 0


def test_an_axis_that_a_seed_lacks_has_no_ratio():
    assert time_ratio(seeds_at([20, 20]), seeds_at([10, 10]), "seconds") is None
    assert time_ratio(seeds_at([20, 20]), seeds_at([0.0, 10]), "steps") is None  # such as tokens before any are trained


def seeds(x, *ys):
    return [
        Curve(str(i), str(i), {"seconds": np.array(x, float)}, {"accuracy": np.array(y, float)})
        for i, y in enumerate(ys)
    ]


BASELINE = seeds([0, 10, 20, 30], [0.1, 0.50, 0.60, 0.58], [0.1, 0.54, 0.60, 0.62])  # mean 0.1 0.52 0.6 0.6


def test_the_first_measured_point_at_or_above_the_level_counts():
    result = speed_up(BASELINE, seeds([0, 5, 25], [0.1, 0.5939, 0.7]), "seconds", "accuracy")
    assert result.level == pytest.approx(0.594)
    assert (result.baseline, result.other, result.ratio) == (
        20,
        25,
        0.8,
    )  # not where a line between 5 and 25 crosses it
    assert speed_up(BASELINE, seeds([0, 5, 25], [0.1, 0.5941, 0.7]), "seconds", "accuracy").ratio == 4


def test_the_level_is_reached_by_training_not_before_it():
    solved = seeds([0, 4], [0.9, 0.9])
    assert speed_up(BASELINE, solved, "seconds", "accuracy").other == 4
    falling = speed_up(seeds([0, 4], [0.9, 0.1]), solved, "seconds", "accuracy")
    assert (falling.baseline, falling.ratio) == (None, None)


def test_never_reached_is_a_result():
    result = speed_up(BASELINE, seeds([0, 5, 90], [0.1, 0.5, 0.59]), "seconds", "accuracy")
    assert (result.baseline, result.other, result.ratio, result.ended_before) == (20, None, None, False)
    short = speed_up(BASELINE, seeds([0, 5, 9], [0.1, 0.5, 0.59]), "seconds", "accuracy")
    assert (short.other, short.ends, short.ended_before) == (None, 9, True)  # it was not trained as far


def test_a_mean_that_rounding_leaves_below_the_level_has_reached_it():
    one, same = seeds([0, 4], [0, 0.7 / 0.99]), seeds([0, 4], [0, 0.7], [0, 0.7], [0, 0.7])
    assert speed_up(one, same, "seconds", "accuracy").ratio == 1


def test_a_missing_axis_has_no_speed_up():
    assert speed_up(BASELINE, BASELINE, "steps", "accuracy") is None


@pytest.mark.parametrize(
    ("setting", "baseline", "other", "expected"),
    [
        ("a", "Instruct-GSM8K-512-16-16", "Instruct-GSM8K-512-64-16", 2.0),
        ("b", "Instruct-MATH-NF-512-8-8", "Instruct-MATH-NF-512-32-8", 2.0),
        ("c both_acc", "Instruct-Llama-512-16-16-0.04", "Instruct-Llama-512-64-16-0.04", 3.0),
        ("c ans_acc", "Instruct-Llama-512-16-16-0.04", "Instruct-Llama-512-64-16-0.04", None),
        ("d", "GA", "PODS", 12 / 7),
        ("e", "GA", "PODS", 1.75),
    ],
)
def test_the_public_curves_give_the_published_speed_ups(setting, baseline, other, expected, tmp_path):
    file = as_csv(public_curves(), tmp_path)[setting]
    out = tmp_path / "compared"
    result = CliRunner().invoke(app, ["compare", str(file), "--baseline", baseline, "-o", str(out), "--no-plot"])
    assert result.exit_code == 0, result.output
    with (out / "speed_ups.csv").open() as table:
        rows = [row for row in csv.DictReader(table) if row["group"] == other]
    (row,) = rows
    if expected is None:
        assert (row["pods_99"], row["pods_never_reached"]) == ("", "group")
    else:
        assert float(row["pods_99"]) == pytest.approx(expected, rel=1e-3)
        assert row["pods_never_reached"] == ""
    assert (row["low"], row["high"]) == ("", "")  # of mean curves there is no interval


def test_groups_without_a_common_axis_are_drawn(tmp_path):
    (tmp_path / "a.csv").write_text("group,tokens_generated,accuracy,length\nA,1,0.1,30\nA,2,0.5,40\n")
    (tmp_path / "b.csv").write_text("group,steps,accuracy\nB,1,0.1\nB,2,0.5\nC,1,0.2\nC,2,0.3\n")
    files = [str(tmp_path / name) for name in ("a.csv", "b.csv")]
    result = CliRunner().invoke(app, ["compare", *files, "-o", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out" / "comparison.png").stat().st_size > 10_000


def test_a_longer_run_does_not_break_the_bound():
    (base,) = seeds_at([18.9], names="0")
    curves = ([0.1, 0.4, 0.6], [0.1, 0.4, 0.6, 0.8])
    short, long = (seed_time(curve(y, steps=[10 * place for place in range(len(y))]), "accuracy", 0.57) for y in curves)
    assert (short.ending, long.ending) == ("never", "reached")
    bound, later = (time_ratio([base], [one], "steps") for one in (short, long))
    assert later.ratio <= bound.at_most


def test_a_crossing_that_a_longer_run_would_undo_is_in_no_bound():
    # means 0.25 0.33 0.6 0.7 of the short run; the longer one has 0.57 at 30, and 0.73 at 40
    short, long = (
        seed_time(curve(y, steps=range(0, 10 * len(y), 10)), "accuracy", 0.65)
        for y in ([0.1, 0.4, 0.5, 0.9], [0.1, 0.4, 0.5, 0.9, 0.3, 1.0])
    )
    assert (short.at_last, short.x, long.x) == (True, pytest.approx({"steps": 25}), pytest.approx({"steps": 33.75}))
    never = seeds_at([40], names="0", endings=["never"])
    assert math.isnan(time_ratio([short], never, "steps").at_most)
    assert math.isnan(time_ratio(never, [short], "steps").at_least)
    group = [short, *seeds_at([40], names="1", endings=["never"])]  # the first seed takes 20 steps at least
    assert time_ratio(seeds_at([30, 30], names="01"), group, "steps").at_most == pytest.approx(30 / math.sqrt(800))
