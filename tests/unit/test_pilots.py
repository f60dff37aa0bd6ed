"""A claim's level, the rule that chooses a learning rate from pilots, and the check of cost curves, by hand."""

from __future__ import annotations

import itertools
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from winnow.state.cost_files import read_costs
from winnow_lab.compare.curve import Curve
from winnow_lab.compare.groups import SeedGroup, omitted_work

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import claims
import step_costs
from pilots import arms_with_unfinished, at_edge, chosen, described, level


def cells(**arms):
    """{"ARM,learning_rate=RATE": cell} from arm -> {rate: (accuracy, stable)}."""
    return {
        f"{arm},learning_rate={rate:g}": {"mean accuracy": accuracy, "stable": stable}
        for arm, rates in arms.items()
        for rate, (accuracy, stable) in rates.items()
    }


def test_an_arm_gets_its_best_rate_and_of_equal_ones_the_lowest():
    of = cells(
        a={6e-5: (0.5, True), 1.2e-4: (0.6, True), 2.4e-4: (0.7, False)},
        b={6e-5: (0.5, True), 1.2e-4: (0.6, True), 2.4e-4: (0.6, True)},
    )
    assert chosen(of) == {"a": 2.4e-4, "b": 1.2e-4}
    assert at_edge(of, chosen(of)) == ["a"]
    assert at_edge(of, {"a": 6e-5, "b": 1.2e-4}) == ["a"]


def test_the_level_is_from_the_lowest_stable_cell():
    of = [{"last third": third, "stable": stable} for third, stable in ((0.6, False), (0.7, True), (0.8, True))]
    assert level(of) == 0.665
    assert level(of[:1]) is None


def test_a_cell_is_described_by_its_mean_its_fall_and_its_last_third():
    rising = np.array([0.1, 0.4, 0.5, 0.6, 0.6, 0.6])
    falling = np.array([0.1, 0.6, 0.6, 0.6, 0.3, 0.3])  # means of three: 0.6 at the highest, 0.3 at the end
    cell = described({"1": rising, "2": falling})
    assert cell["mean accuracy"] == pytest.approx((2.7 / 5 + 2.4 / 5) / 2)  # without step 0
    assert cell["fall"] == pytest.approx((0 + 0.3) / 2)
    assert not cell["stable"]
    assert described({"1": rising})["stable"]
    assert cell["last third"] == pytest.approx((0.6 + 0.3) / 2)


def test_a_registered_level_replaces_that_of_the_baselines_plateau():
    """Steps of 10 on a straight line to 0.9: the level of 0.5 is reached between the fifth and the sixth evaluation."""
    curve = Curve("a", "0", {"steps": np.arange(0.0, 100.0, 10.0)}, {"accuracy": np.linspace(0.0, 0.9, 10)})
    found = SimpleNamespace(groups=[SeedGroup("one", (curve,))], measure="accuracy")
    (time,) = claims.to_level(found, 0.55)["one"]
    assert time.x["steps"] == pytest.approx(55.0)
    (never,) = claims.to_level(found, 0.95)["one"]
    assert (never.ending, never.x["steps"]) == ("never", 90.0)


def row(n, m, ratio):
    return {"n": n, "m": m, "ratio": ratio}


def test_costs_are_refused_if_a_run_was_not_alone_or_a_pair_is_described_wrongly():
    fine = [row(16, 16, 0.91), row(64, 64, 1.09)]
    assert step_costs.refusals(fine, {"a": 0.05, "b": 0.0}) == []
    assert len(step_costs.refusals(fine, {"a": 0.06, "b": 0.0})) == 1
    assert len(step_costs.refusals([row(16, 16, 0.89), row(64, 64, 1.11)], {"a": 0.5})) == 3


def test_the_share_of_others_is_the_busy_time_that_is_not_its_own():
    assert step_costs.share_of_others((0.0, 0.0, 0.0), (20.0, 12.0, 10.0)) == pytest.approx(0.1)
    assert step_costs.share_of_others((5.0, 5.0, 5.0), (25.0, 14.0, 15.0)) == 0.0  # clocks of different grain


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_processor_counts_its_own_seconds_among_the_busy_ones():
    whole, busy, own = step_costs.processor()
    assert 0 < busy <= whole
    assert 0 < own <= whole


def steps(rollouts, trained, seconds, count=4):
    length = 10.0
    return [
        {
            "group/count": 1.0,
            "budget/rollouts": rollouts,
            "budget/tokens_generated": rollouts * length,
            "select/trained": trained,
            "budget/tokens_trained": trained * length,
            "seconds/generate": seconds(rollouts, trained)[0],
            "seconds/update": seconds(rollouts, trained)[1],
            "seconds/step": sum(seconds(rollouts, trained)) + 0.01,
        }
        for _ in range(count)
    ]


def test_the_curves_compute_the_seconds_of_linear_costs_and_keep_falling_points():
    def linear(n, m):
        return 0.1 + 0.001 * n, 0.02 + 0.002 * m

    runs = {pair: steps(*pair, linear) for pair in step_costs.PAIRS}
    costs = step_costs.curves(runs, 2)
    for pair, rows in runs.items():
        assert step_costs.described(*pair, rows, costs)["ratio"] == pytest.approx(1.0, abs=1e-3)

    def falling(n, m):
        return 0.1 + 0.001 * n, 0.5 if m == 8 else 0.4

    of = step_costs.curves({pair: steps(*pair, falling) for pair in step_costs.PAIRS}, 2).update
    assert dict(zip(of.rollouts, of.seconds, strict=True))[16.0] == pytest.approx(0.4)  # not the 0.5 of 8 rollouts


@pytest.mark.parametrize(("others", "written"), [(0.0, True), (0.2, False)])
def test_a_file_of_costs_is_written_only_if_the_machine_was_alone(tmp_path, monkeypatch, others, written):
    def measured(n, m, *_):
        return steps(n, m, lambda n, m: (0.1 + 0.001 * n, 0.02 + 0.002 * m))

    readings = itertools.count()  # of a processor: 10 seconds of each run, of which 5 are its own
    monkeypatch.setattr(step_costs, "trained", measured)
    monkeypatch.setattr(
        step_costs, "processor", lambda: tuple(next(readings) * x for x in (10.0, 5.0 + 10.0 * others, 5.0))
    )
    monkeypatch.setattr(step_costs, "COSTS", tmp_path / "configs" / "costs" / "costs.json")
    (tmp_path / "configs" / "costs").mkdir(parents=True)
    reports = []
    monkeypatch.setattr(step_costs.frame, "finish", lambda name, report, *_, **__: reports.append(report))
    monkeypatch.setattr(step_costs.frame, "begin", lambda **_: None)
    monkeypatch.setattr(sys, "argv", ["benchmarks/step_costs.py", "--threads", "1"])
    with nullcontext() if written else pytest.raises(SystemExit, match="refused"):
        step_costs.main()
    assert step_costs.COSTS.exists() is written
    (report,) = reports
    assert len(report["share of other processes"]) == 2 * len(step_costs.PAIRS)
    assert bool(report["refused"]) is not written
    if written:
        check = json.loads(step_costs.COSTS.read_text())["check"]
        assert check == {"lowest": pytest.approx(1, abs=1e-3), "highest": pytest.approx(1, abs=1e-3), "others": 0.0}
        assert read_costs(step_costs.COSTS).source == report["costs"]["source"]


def test_an_arm_with_an_unfinished_run_is_left_out():
    two = {"100": np.zeros(3), "101": np.zeros(3)}
    short = {"100": np.zeros(3), "101": np.zeros(2)}
    labels = [f"{arm},learning_rate={rate}" for arm in ("whole", "short", "seed", "label") for rate in ("1e-4", "2e-4")]
    of = dict(zip(labels, [two, two, two, short, {"100": np.zeros(3)}, two, two], strict=False))
    assert arms_with_unfinished(of, labels, ["100", "101"]) == ["short", "seed", "label"]
    assert arms_with_unfinished({label: two for label in labels}, labels, ["100", "101"]) == []


def test_a_claim_reads_its_registered_cells_alone_with_the_baseline_first(tmp_path):
    for label in ("pods_32_16", "grpo_16", "of another sweep", "comparison"):
        (tmp_path / label).mkdir()
    found = claims.inputs("claim_03_rollouts", tmp_path)
    assert found == [f"{label}={tmp_path / label}" for label in ("grpo_16", "pods_32_16")]
    with pytest.raises(SystemExit, match="pods_64_2"):
        claims.inputs("claim_04_kept", tmp_path)


@pytest.mark.parametrize(
    ("config", "work"),
    [
        ({"allocate": {"use": "gvm"}, "probe": {"gradient_norm": "none"}}, []),
        ({"allocate": "gvm", "probe": {"gradient_norm": "output_head"}}, ["an allocator's gradient norms"]),
        ({"allocate": {"use": "gvm"}, "critic": {"form": "model"}}, ["a value model", "an allocator's gradient norms"]),
        ({"allocate": {"use": "gvm_online"}}, ["an allocator's gradient norms"]),
        ({"allocate": "cures"}, ["an allocator's gradient norms"]),
        ({"allocate": "knapsack"}, []),
        ({"critic": None}, []),
        ({}, []),
    ],
)
def test_the_work_that_cost_curves_omit(config, work):
    assert omitted_work(config) == work
