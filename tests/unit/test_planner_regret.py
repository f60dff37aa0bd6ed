"""The regret of a choice of n and m, by hand: benchmarks/planner_regret.py."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from planner_regret import by_the_page, median_regret, nearest, regrets

from winnow.algos.step_plan import Setting

TIMES = {"a": {"0": 10.0, "1": 40.0}, "b": {"0": 20.0, "1": 20.0}, "c": {"0": 80.0, "1": math.inf}}


def test_regret_is_the_time_of_the_choice_over_the_best():
    report = regrets(TIMES, {"one": {"0": "a", "1": "a"}, "other": {"0": "c", "1": "c"}})
    assert report["one"]["per_seed"] == {"0": 1.0, "1": 2.0}
    assert report["one"]["mean_over_seeds"] == pytest.approx(2**0.5, abs=1e-4)
    assert report["one"]["of_mean_times"] == {"chosen": "a", "regret": 1.0}  # geometric means: 20, 20, never
    assert report["other"]["per_seed"] == {"0": 8.0, "1": None}
    assert report["other"]["mean_over_seeds"] is None
    assert report["median cell"]["per_seed"] == {"0": 2.0, "1": 2.0}


def test_the_median_of_an_even_number_of_cells_is_the_mean_of_two():
    assert median_regret({"a": 10.0, "b": 20.0, "c": 30.0, "d": math.inf}) == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("rate", "pair"), [(0.5, (8, 2)), (0.8, (16, 4)), (0.1, (16, 4)), (0.05, (32, 8)), (0.95, (32, 8))]
)
def test_the_pages_default(rate, pair):
    assert by_the_page(rate) == pair


def test_the_nearest_cell_by_ratios():
    cells = {"16 to 4": Setting(16, 4, 1), "8": Setting(8, 8, 1), "64 to 2": Setting(64, 2, 1)}
    assert nearest(cells, 8, 2) == "16 to 4"  # a factor of 2 in both, where "8" is a factor of 4 in m: the first
    assert nearest(cells, 64, 4) == "64 to 2"
