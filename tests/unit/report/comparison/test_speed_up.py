from __future__ import annotations

import csv

import numpy as np
import pytest
from public_curves import as_csv, public_curves
from typer.testing import CliRunner

from winnow.cli import app
from winnow.report.comparison.curve import Curve
from winnow.report.comparison.mean_curve import mean_curve
from winnow.report.comparison.speed_up import gain_at_the_end, is_rising, speed_up, without_one_seed


def seeds(x, *ys):
    return [
        Curve(str(i), str(i), {"seconds": np.array(x, float)}, {"accuracy": np.array(y, float)})
        for i, y in enumerate(ys)
    ]


BASELINE = seeds([0, 10, 20, 30], [0.1, 0.50, 0.60, 0.58], [0.1, 0.54, 0.60, 0.62])  # mean 0.1 0.52 0.6 0.6


def test_the_first_measured_point_at_or_above_the_level_counts():
    found = speed_up(BASELINE, seeds([0, 5, 25], [0.1, 0.5939, 0.7]), "seconds")
    assert found.level == pytest.approx(0.594)
    assert (found.baseline, found.other, found.ratio) == (20, 25, 0.8)  # not where a line between 5 and 25 crosses it
    assert speed_up(BASELINE, seeds([0, 5, 25], [0.1, 0.5941, 0.7]), "seconds").ratio == 4


def test_the_level_is_reached_by_training_not_before_it():
    solved = seeds([0, 4], [0.9, 0.9])
    assert speed_up(BASELINE, solved, "seconds").other == 4
    falling = speed_up(seeds([0, 4], [0.9, 0.1]), solved, "seconds")
    assert (falling.baseline, falling.ratio) == (None, None)


def test_never_reached_is_a_result():
    found = speed_up(BASELINE, seeds([0, 5, 90], [0.1, 0.5, 0.59]), "seconds")
    assert (found.baseline, found.other, found.ratio, found.ended_before) == (20, None, None, False)
    short = speed_up(BASELINE, seeds([0, 5, 9], [0.1, 0.5, 0.59]), "seconds")
    assert (short.other, short.ends, short.ended_before) == (None, 9, True)  # it was not trained as far


def test_a_mean_that_rounding_leaves_below_the_level_has_reached_it():
    one, same = seeds([0, 4], [0, 0.7]), seeds([0, 4], [0, 0.7], [0, 0.7], [0, 0.7])
    assert speed_up(one, same, "seconds", 1.0).ratio == 1


def test_to_the_maximum_is_the_same_with_the_whole_of_it():
    other = seeds([0, 5, 10], [0.1, 0.595, 0.7])
    assert speed_up(BASELINE, other, "seconds").ratio == 4
    assert speed_up(BASELINE, other, "seconds", 1.0).ratio == 2


def test_every_seed_of_either_group_is_left_out_once():
    other = seeds([0, 5, 10], [0.1, 0.5, 0.62], [0.1, 0.7, 0.7])  # mean 0.1 0.6 0.66
    assert speed_up(BASELINE, other, "seconds").ratio == 4
    # without baseline 0: level 0.6138 at 30, other at 10; without 1: 0.594 at 20, at 5; without other 0: 4, 1: 20 / 10
    found = without_one_seed(BASELINE, other, "seconds")
    assert (found.lowest, found.highest, found.never, found.variants) == (2, 4, 0, 4)
    assert without_one_seed(BASELINE[:1], other[:1], "seconds") is None


def test_a_variant_that_never_reaches_the_level_is_counted():
    other = seeds([0, 5, 10], [0.1, 0.1, 0.1], [0.1, 1.1, 1.1])
    found = without_one_seed(BASELINE, other, "seconds")  # never without baseline 0 (0.6138), nor without other 1
    assert (found.lowest, found.highest, found.never, found.variants) == (4, 4, 2, 4)


def test_a_missing_axis_has_no_speed_up():
    assert speed_up(BASELINE, BASELINE, "steps") is None


def test_a_level_that_is_first_reached_at_a_last_point_is_marked_for_the_side_that_ends_there():
    late = seeds([0, 5, 10], [0.1, 0.5, 0.6])
    found = speed_up(BASELINE, late, "seconds")  # the baseline reaches it at 20 of 30
    assert (found.baseline_at_its_end, found.other_at_its_end) == (False, True)
    turned = speed_up(late, BASELINE, "seconds")  # 0.594 at 10 of 10, and at 20 of 30
    assert (turned.baseline_at_its_end, turned.other_at_its_end) == (True, False)
    never = speed_up(BASELINE, seeds([0, 5], [0.1, 0.2]), "seconds")
    assert (never.other, never.other_at_its_end) == (None, False)


@pytest.mark.parametrize(
    ("accuracies", "gain", "rising"),
    [
        ([0.1, 0.5, 0.6, 0.6], 0.0, False),  # the last two of four points
        ([0.1, 0.5, 0.590, 0.595], 0.005, False),  # below 1% of 0.595
        ([0.1, 0.5, 0.590, 0.600], 0.010, True),
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.60, 0.64, 0.66], 0.06, True),  # a line through the last three
        ([0.1, 0.5, 0.6, 0.4], -0.2, False),
    ],
)
def test_a_curve_rises_where_its_last_third_gains_more_than_one_percent_of_its_best(accuracies, gain, rising):
    curve = mean_curve(seeds(range(len(accuracies)), accuracies), "seconds", "accuracy")
    assert gain_at_the_end(curve) == pytest.approx(gain)
    assert is_rising(curve) is rising


def test_a_curve_of_one_point_does_not_rise():
    assert is_rising(mean_curve(seeds([4], [0.5]), "seconds", "accuracy")) is False


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
        rows = [row for row in csv.DictReader(table) if (row["group"], row["share"]) == (other, "0.99")]
    (row,) = rows
    if expected is None:
        assert (row["speed_up"], row["never_reached"]) == ("", "group")
        assert "never reached" in result.output
    else:
        assert float(row["speed_up"]) == pytest.approx(expected, rel=1e-3)
        assert row["never_reached"] == ""


def test_groups_that_share_no_axis_are_drawn_all_the_same(tmp_path):
    (tmp_path / "a.csv").write_text("group,tokens_generated,accuracy,length\nA,1,0.1,30\nA,2,0.5,40\n")
    (tmp_path / "b.csv").write_text("group,steps,accuracy\nB,1,0.1\nB,2,0.5\nC,1,0.2\nC,2,0.3\n")
    files = [str(tmp_path / name) for name in ("a.csv", "b.csv")]
    result = CliRunner().invoke(app, ["compare", *files, "-o", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out" / "comparison.png").stat().st_size > 10_000
