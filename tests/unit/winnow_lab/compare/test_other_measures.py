"""`winnow compare --measure`: level, times, curves, files and pictures are of that metric."""

from __future__ import annotations

import csv

import pytest
from typer.testing import CliRunner
from written_runs import write_run

from refusals import refused
from winnow.commands import app
from winnow.errors import ConfigError, DataError
from winnow_lab.compare.comparison import compare_inputs
from winnow_lab.compare.picture import draw_comparison

BOTH = (0.0, 0.3, 0.5, 0.5, 0.5, 0.5)


@pytest.fixture
def runs(tmp_path):
    """Two seeds of two groups: accuracy rises early, format and both later; of a further task there is pass@4."""
    for label, seconds in (("a", 10.0), ("b", 5.0)):
        for seed in (0, 1):
            extra = [
                {
                    "eval/correct_and_formatted": both,
                    "eval/math/accuracy_sampled": 0.1,
                    "eval/math/pass_at_4": 0.5 * both,
                }
                for both in BOTH
            ]
            run = tmp_path / f"{label}-{seed}"
            write_run(run, (0.1, 0.6, 0.6, 0.6, 0.6, 0.6), seed=seed, seconds=seconds, evaluation=extra)
    return [f"{label}={tmp_path}/{label}-*" for label in "ab"]


def test_level_times_and_curves_are_of_the_measure(runs):
    result = compare_inputs(runs, measure="correct_and_formatted")
    assert result.plateau.level == pytest.approx(0.95 * 0.5)
    # means 0.15 0.2667 0.4333 0.5: at 0.475 after 2.625 evaluations, which are two steps apart
    assert result.times["a"][0].x["steps"] == pytest.approx(5.25)
    assert {row.axis: row.ratio.ratio for row in result.speed_ups}["seconds"] == pytest.approx(2)
    assert ("a", "steps", "correct_and_formatted") in result.curves


@pytest.mark.parametrize(("task", "name"), [("math", "eval/pass_at_4"), (None, "eval/math/pass_at_4")])
def test_any_metric_of_a_further_task(runs, task, name):
    result = compare_inputs(runs, task=task, measure=name)
    assert result.plateau.value == pytest.approx(0.25)
    assert result.curves["b", "steps", name].mean.tolist() == pytest.approx([0.5 * both for both in BOTH])


def test_a_task_that_no_run_has_is_refused_with_those_that_they_have(runs):
    with refused(DataError, "maths", "math", code="data.empty"):
        compare_inputs(runs, task="maths")


def test_table_files_and_picture_are_of_the_measure(runs, tmp_path):
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["compare", *runs, "--measure", "eval/length_mean", "-o", str(out), "--no-plot"])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[0].split(":")[0] == "held-out length mean"
    with (out / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["measure"] for row in rows} >= {"eval/length_mean"}
    panel = draw_comparison(compare_inputs(runs, measure="correct_and_formatted")).axes[0]
    assert panel.get_ylabel() == "held-out correct and formatted (%)"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("acuracy", "accuracy"),
        ("eval/lenght_mean", "eval/length_mean"),
        ("correct_and_form", "correct_and_formatted"),
    ],
)
def test_a_name_that_no_run_has_is_refused_with_the_nearest(runs, name, near):
    with refused(ConfigError, name, near, code="config.unknown_name"):
        compare_inputs(runs, measure=name)


def test_a_measure_that_one_run_lacks_is_refused_with_its_name(runs, tmp_path):
    write_run(tmp_path / "c-0", (0.1, 0.6))
    with refused(ConfigError, "c-0", "correct_and_formatted", code="config.unknown_name"):
        compare_inputs([*runs, f"c={tmp_path / 'c-0'}"], measure="correct_and_formatted")
