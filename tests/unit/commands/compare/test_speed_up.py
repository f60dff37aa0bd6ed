from __future__ import annotations

import csv

import numpy as np
import pytest
from public_curves import as_csv, public_curves
from typer.testing import CliRunner

from winnow.commands import app
from winnow.commands.compare.curve import Curve
from winnow.commands.compare.speed_up import speed_up


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
