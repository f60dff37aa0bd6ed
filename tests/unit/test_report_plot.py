from __future__ import annotations

import json
import math

import pytest
from synthetic_run import metrics, write_run

from winnow.errors import DataError
from winnow.report.history import training_history
from winnow.report.plot import plot
from winnow.report.summary import hints, summary
from winnow.state.logbook import read_metrics


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return read_metrics(write_run(tmp_path_factory.mktemp("runs") / "toy"))


def said(*steps):
    return " ".join(hints(steps))


def test_the_picture_is_a_png_with_four_panels(rows, tmp_path):
    plot(rows, tmp_path / "plot.png", title="toy [run]")
    assert (tmp_path / "plot.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (tmp_path / "plot.png").stat().st_size > 20_000


def test_a_single_step_without_an_evaluation_can_be_plotted(tmp_path):
    plot([{"step": 0, **metrics(0)}], tmp_path / "plot.png", title="one")
    assert (tmp_path / "plot.png").exists()


def test_nothing_to_plot_and_nowhere_to_plot_are_errors(rows, tmp_path):
    with pytest.raises(DataError, match="nothing to plot"):
        plot([{"step": 0, "eval/seconds": 1.0}], tmp_path / "plot.png", title="")
    with pytest.raises(DataError, match="cannot write"):
        plot(rows, tmp_path / "no" / "plot.png", title="")


def test_the_summary_says_what_improved_and_what_it_cost(rows):
    assert summary(rows).splitlines() == [
        "reward    0.100 -> 1.000 (+0.900), first and last step",
        "accuracy  10.0% -> 100.0% (+90.0%), first and last step",
        "held-out  sampled 5.0% -> 58.0%, best after 5 steps: sampled 61.0% ± 2.0%",
        "held-out  greedy 4.0% -> 66.0%, best after 5 steps: greedy 70.0%",
        "budget    10 steps, 10 updates, 160 rollouts, 10k tokens, of which 2.5k trained on (25.0%)",
        "time      0:40 training (generate 75%, update 25%), 0:18 evaluating",
    ]


def test_long_runs_are_compared_over_a_tenth_of_their_steps():
    rows = [{"step": i, **metrics(0, **{"reward/mean": 1.0 if i == 0 else 0.0})} for i in range(40)]
    assert "reward    0.250 -> 0.000 (-0.250), first and last 4 steps" in summary(rows)


def test_a_run_without_a_step_cannot_be_summed_up():
    with pytest.raises(DataError, match="not finished a step"):
        summary([{"step": 0, "eval/seconds": 1.0}])


def test_a_healthy_run_gets_no_hint():
    assert said(metrics(0), metrics(1)) == ""


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"group/flat": 4, "group/all_wrong": 3, "group/all_correct": 1}, "too hard"),
        ({"group/flat": 4, "group/all_wrong": 0, "group/all_correct": 4}, "solved, or too easy"),
        ({"group/flat": 4, "reward/min": 0.0, "reward/max": 0.0}, "range has collapsed"),
        ({"rollout/truncated": 0.9}, "raise rollout.max_new_tokens"),
        ({"outcome/unparsable": 15}, "93.8% of the rollouts have no readable answer"),
        ({"outcome/failed": 2}, "4 verdicts failed"),
        ({"policy/entropy": 0.001}, "entropy is below"),
        ({"policy/skipped_updates": 1}, "2 updates were skipped"),
    ],
)
def test_hints_name_what_went_wrong(changes, hint):
    assert hint in said(metrics(0, **changes), metrics(1, **changes))


def test_the_reward_range_of_a_step_with_a_spread_has_not_collapsed():
    assert "collapsed" not in said(metrics(0, **{"group/flat": 4}))


def test_history_has_the_older_schema():
    rows = [
        {"step": 0, **metrics(0), "policy/clip_fraction": 0.25, "reward/part/format": 0.5},
        {"step": 1, **metrics(1), "policy/loss": math.nan, "eval/accuracy_sampled": 0.3},
        {"step": 2, "eval/accuracy_sampled": 0.4},
    ]
    first, second = training_history(rows)

    assert first == {
        "grpo_step": 1, "reward_mean": 0.1, "reward_std": 0.4, "reward_max": 1.0, "reward_min": 0.0,
        "answer_reward_mean": 0.1, "format_reward_mean": 0.5, "advantage_mean": 0.0, "advantage_std": 0.9,
        "loss": 0.0, "grad_norm": 0.3, "clip_fraction": 0.25, "val_reward": 0.3,
    }  # fmt: skip
    assert second["grpo_step"] == 2
    assert second["loss"] is None
    assert second["format_reward_mean"] is None
    assert "clip_fraction" not in second
    assert second["val_reward"] == 0.4
    json.dumps([first, second], allow_nan=False)
