"""Runs that are compared in equal seconds of training, by hand: the measure, rates from it, and the contrasts."""

from __future__ import annotations

import json
import math
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from scipy.special import stdtrit

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import auto_sizes
import pilots
from decisions import Times, word_of


def rows_of(accuracies, clock, every=2):
    """Metrics of a run that is evaluated after each `every` steps: one row per step, with the evaluation before it."""
    rows = [{"step": step, "budget/rollouts": 8.0} for step in range(every * (len(clock) - 1))]
    for row in rows:
        row |= {"seconds/step": 1.9, "budget/tokens_generated": 100.0, "budget/tokens_trained": 50.0}
    rows.append({"step": len(rows)})
    for place, (accuracy, at) in enumerate(zip(accuracies, clock, strict=True)):
        rows[every * place] |= {
            "eval/accuracy_sampled": accuracy,
            "eval/training_hours": at / 3600,
            "eval/seconds": 36.0,
        }
    return rows


def test_a_curve_ends_at_t_on_the_training_clock():
    """Evaluations after 0, 4, 8 and 12 seconds, and T = 10: 5 steps and an accuracy of 0.6, between two of them."""
    rows = rows_of([0.0, 0.4, 0.4, 0.8], [0, 4, 8, 12])
    curve = pilots.read(rows, "7", 10.0)
    assert curve.x["seconds"] == pytest.approx([0, 4, 8, 10])
    assert curve.y["accuracy"] == pytest.approx([0.0, 0.4, 0.4, 0.6])
    assert (curve.x["steps"][-1], curve.x["tokens_generated"][-1]) == pytest.approx((5, 500))
    assert pilots.over_seconds(curve) == pytest.approx((4 * 0.2 + 4 * 0.4 + 2 * 0.5) / 10)
    assert pilots.read(rows, "7", 12.0).x["seconds"] == pytest.approx([0, 4, 8, 12])
    assert pilots.read(rows, "7", 12.1) is None
    assert pilots.read(rows, "7", None).x["seconds"] == pytest.approx([0, 3.8, 7.6, 11.4])  # those of the steps


def test_seconds_of_a_run_contain_the_choice_of_its_sizes():
    rows = rows_of([0.0, 0.4, 0.8], [0, 5, 10])  # its steps alone take 3.8 and 7.6
    assert pilots.on_clock(rows, "0").x["seconds"] == pytest.approx([0, 5, 10])


def sweep(folder, runs, evaluated=()):
    """The folder of a sweep, from label -> seed -> (accuracies, clock)."""
    seeds = sorted({seed for of in runs.values() for seed in of})
    labels = {label: {"optimizer.learning_rate": 1e-5 * (place + 1)} for place, label in enumerate(runs)}
    contents = {"winnow_sweep": 1, "labels": labels, "seeds": seeds, "baseline": None, "inputs": {}}
    folder.mkdir()
    (folder / "sweep.json").write_text(json.dumps(contents))
    for label, of in runs.items():
        for seed, (accuracies, clock) in of.items():
            run = folder / label / f"seed-{seed}"
            run.mkdir(parents=True)
            (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of(accuracies, clock)))
    return folder


@pytest.fixture
def reported(monkeypatch):
    """Call the script with arguments; returns its report."""

    def call(*arguments):
        found = []
        monkeypatch.setattr(pilots.frame, "finish", lambda name, report, *_, **__: found.append(report))
        monkeypatch.setattr(pilots.frame, "begin", lambda **_: None)
        monkeypatch.setattr(sys, "argv", ["pilots.py", "a_sweep", *map(str, arguments)])
        pilots.main()
        return found[0]

    return call


def test_a_rate_is_chosen_by_the_area_and_an_arm_with_a_short_run_is_left_out(tmp_path, reported):
    """Slow has the better evaluations, and they come late. One run of the second arm ends before T."""
    early, late, clock = ([0.0, 0.6, 0.6, 0.6], [0, 1, 9, 10]), ([0.0, 0.7, 0.7, 0.7], [0, 8, 9, 10]), [0, 4, 8, 12]
    grid = {
        "a,learning_rate=1e-05": {100: early, 101: early},
        "a,learning_rate=2e-05": {100: late, 101: late},
        "b,learning_rate=1e-05": {100: early, 101: ([0.0, 0.9, 0.9, 0.9], [0, 4, 8, 9.9])},
        "b,learning_rate=2e-05": {100: early, 101: ([0.1] * 4, clock)},
    }
    folder = sweep(tmp_path / "s", grid)
    report = reported("--folder", folder, "--seconds", 10)
    assert report["chosen"] == {"a": 1e-5}
    assert report["cells"]["a,learning_rate=1e-05"]["mean accuracy"] == pytest.approx((0.3 + 9 * 0.6) / 10)
    assert report["cells"]["a,learning_rate=2e-05"]["mean accuracy"] == pytest.approx((8 * 0.35 + 2 * 0.7) / 10)
    assert report["level"] == 0.57  # 95% of 0.6
    assert len(report["notes"]) == 1
    assert reported("--folder", folder)["chosen"] == {"a": 2e-5, "b": 1e-5}  # of the evaluations
    assert reported("--folder", folder, "--seconds", 10, "--seeds", 100)["chosen"] == {"a": 1e-5, "b": 1e-5}


def rising(height):
    """A run whose measure is `height` by T = 8: it rises from 0 to twice that."""
    return [0.0, height, 2 * height, 2 * height], [0, 4, 8, 12]


def test_contrasts_of_runs_are_decided_in_order_over_the_seeds_that_every_arm_has(tmp_path, reported):
    """Seed 204 lacks an arm. The first two contrasts are a gain, and the third is equal."""
    heights = {"grpo_8": (0.20, 0.22, 0.21, 0.24), "grpo_32": (0.201, 0.222, 0.209, 0.239)}
    heights["pods_32_8"] = (0.23, 0.27, 0.25, 0.28)  # 3, 5, 4 and 4 points more than the first
    runs = {arm: {200 + place: rising(one) for place, one in enumerate(of)} for arm, of in heights.items()}
    runs["grpo_8"][204] = rising(0.9)
    report = reported("--folder", sweep(tmp_path / "s", runs), "--seconds", 8, "--level", 0.31)
    assert report["seeds"] == ["200", "201", "202", "203"]
    first, second, third = report["contrasts"]
    half = stdtrit(3, 0.975) * math.sqrt(2e-4 / 3) / 2
    assert [f"{one['group']}-{one['baseline']}" for one in report["contrasts"]] == list(pilots.ORDER)
    assert [first["mean"], first["low"], first["high"]] == pytest.approx([0.04, 0.04 - half, 0.04 + half], abs=1e-5)
    assert [first["word"], second["word"], third["word"]] == ["gain", "gain", "equal"]
    arm = report["arms"]["pods_32_8"]
    assert arm["over the seconds"] == pytest.approx(heights["pods_32_8"])
    assert (arm["steps at T"], arm["accuracy at T"][0]) == ([4.0] * 4, pytest.approx(0.46))
    assert arm["learning rate"] == pytest.approx(3e-5)
    assert report["hours"]["grpo_8"]["evaluation"] == pytest.approx(5 * 4 * 36 / 3600)
    assert report["arms"]["grpo_8"]["seconds to the level"] == [
        None,  # means of neighbours: 0.1, 0.2 and 0.3 after 0, 4 and 8 seconds
        pytest.approx(4 + 4 * 0.09 / 0.11),
        pytest.approx(4 + 4 * 0.10 / 0.105),
        pytest.approx(4 + 4 * 0.07 / 0.12),
    ]
    assert first["sooner"]["bound"] == "at least"


def test_a_later_look_joins_the_folders_and_tests_equality_alone_at_a_stricter_level(tmp_path, reported):
    """Two folders of two seeds. The arms differ by 3, 5, 4 and 4 points, and by 1, -1, 0.5 and -0.5 points."""
    heights = {"a": (0.20, 0.22, 0.21, 0.24), "b": (0.23, 0.27, 0.25, 0.28), "c": (0.21, 0.21, 0.215, 0.235)}
    folders = [
        sweep(
            tmp_path / str(at),
            {arm: {at + place: rising(of[at + place]) for place in (0, 1)} for arm, of in heights.items()},
        )
        for at in (0, 2)
    ]
    given = ("--folder", *folders, "--seconds", 8, "--order", "b-a", "c-a")
    first, second = reported(*given)["contrasts"]
    assert (first["word"], second["word"]) == ("gain", "equal")
    half = stdtrit(3, 0.95) * math.sqrt(2.5e-4 / 3) / 2
    assert second["near"] == pytest.approx((-half, half), abs=1e-5)
    report = reported(*given, "--looks", 2)
    assert (report["seeds"], report["arms"]["b"]["mean"]["mean"]) == (["0", "1", "2", "3"], pytest.approx(0.2575))
    first, second = report["contrasts"]
    half = stdtrit(3, 0.975) * math.sqrt(2.5e-4 / 3) / 2
    assert second["near"] == pytest.approx((-half, half), abs=1e-5)
    assert (first["word"], second["word"]) == ("undecided", "equal")
    assert reported(*given, "--looks", 8)["contrasts"][1]["word"] == "undecided"


def test_words_need_four_seeds_and_follow_the_order():
    def arm(*measures):
        return {"over the seconds": list(measures), "seconds to the level": [None] * len(measures)}

    low, high = arm(0.20, 0.21, 0.20, 0.21), arm(0.30, 0.32, 0.30, 0.31)
    assert pilots.contrast(low, high, 8.0, tested=True)["word"] == "gain"
    assert pilots.contrast(high, low, 8.0, tested=True)["word"] == "loss"
    assert pilots.contrast(low, high, 8.0, tested=False)["word"] == "undecided"
    few = [arm(*one["over the seconds"][:3]) for one in (low, high)]
    assert pilots.contrast(*few, 8.0, tested=True)["word"] == "undecided"
    assert "sooner" not in pilots.contrast(low, high, 8.0, tested=True)  # no seed reached a level


@pytest.mark.parametrize(
    ("low", "high", "near", "word"),
    [
        (0.001, 0.2, (0.01, 0.1), "gain"),
        (-0.2, -0.001, (-0.1, -0.01), "loss"),
        (-0.025, 0.022, (-0.019, 0.019), "equal"),
        (-0.025, 0.03, (-0.019, 0.021), "undecided"),
    ],
)
def test_the_word_of_a_difference(low, high, near, word):
    assert word_of(low, high, near, none=0.0, margin=pilots.MARGIN) == word


def test_a_seed_that_never_arrives_is_at_the_horizon():
    assert Times.of([3.0, None], 8.0) == Times((3.0, 8.0), (False, True))


def test_trained_models_are_compared_with_the_base_of_the_same_task():
    """Two seeds: 2 and 4 points less of GSM8K. The part `strict` is of the other task alone."""
    found = {
        "base.gsm8k": {"eval/accuracy_sampled": 0.10},
        "a-200.gsm8k": {"eval/accuracy_sampled": 0.08},
        "a-201.gsm8k": {"eval/accuracy_sampled": 0.06},
        "base.ifbench": {"eval/accuracy_sampled": 0.2, "eval/part/strict": 0.1},
        "a-200.ifbench": {"eval/accuracy_sampled": 0.2, "eval/part/strict": 0.2},
        "a-201.ifbench": {"eval/accuracy_sampled": 0.2, "eval/part/strict": 0.2},
    }
    of = pilots.beside_base(found, ["a"])
    assert of["a.gsm8k"].keys() == {"eval/accuracy_sampled"}
    half = stdtrit(1, 0.975) * np.std([-0.02, -0.04], ddof=1) / math.sqrt(2)
    assert of["a.gsm8k"]["eval/accuracy_sampled"] == pytest.approx(
        {"mean": -0.03, "low": -0.03 - half, "high": half - 0.03}, abs=1e-5
    )
    assert of["a.ifbench"]["eval/part/strict"]["mean"] == pytest.approx(0.1)


def test_an_arm_that_never_arrives_bounds_the_ratio():
    never, soon = ({"over the seconds": [0.2] * 4, "seconds to the level": at} for at in ([None] * 4, [2.0, 4.0] * 2))
    sooner = pilots.contrast(never, soon, 8.0, tested=True)["sooner"]
    assert (sooner["ratio"], sooner["bound"]) == (pytest.approx(8 / math.sqrt(8)), "at least")


def test_sizes_are_not_compared_before_every_run_has_finished(tmp_path, monkeypatch):
    folder = sweep(tmp_path / "s", {"own": {0: rising(0.2)}})  # without a ledger, so nothing has finished
    monkeypatch.setattr(auto_sizes.frame, "begin", lambda **_: None)
    monkeypatch.setattr(sys, "argv", ["auto_sizes.py", "s", "--folder", str(folder)])
    with pytest.raises(AssertionError, match="own/seed-0"):
        auto_sizes.main()


@pytest.mark.parametrize("name", ["auto_harder", "auto_words", "auto_published"])
def test_no_arm_of_a_sweep_of_seconds_is_always_last(name):
    assert tomllib.loads((Path(__file__).parents[2] / f"configs/sweeps/{name}.toml").read_text())["order"] == "seeds"
