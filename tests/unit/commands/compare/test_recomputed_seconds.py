"""`winnow compare --costs`: seconds of every step from two curves, by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner
from written_runs import write_run, write_sweep

from refusals import refused
from winnow.algos.costs import CostCurve, StepCosts
from winnow.commands import app
from winnow.commands.compare.comparison import compare_inputs
from winnow.errors import DataError

ACCURACIES = (0.1, 0.6, 0.6, 0.6, 0.6)


def costs(**options):
    """Lines through 0: 16 rollouts are sampled in 2 seconds, 8 are trained in 1."""
    sampling, update = CostCurve(np.array([16.0]), np.array([2.0])), CostCurve(np.array([8.0]), np.array([1.0]))
    return StepCosts(sampling, update, source="a table", **options)


def trained(count):
    return lambda step: {"select/trained": count}


def seconds(run, of):
    (group,) = compare_inputs([str(run)], costs=of).groups
    return group.curves[0].x["seconds"].tolist()


def test_a_step_costs_its_rollouts_and_the_training_of_each_epoch(tmp_path):
    run = write_run(tmp_path / "run", ACCURACIES, step=trained(8), update={"epochs": 2})
    # 16 rollouts in 2 seconds, twice 8 in 2, and half a second: 4.5 a step, with an evaluation every two
    assert seconds(run, costs(seconds_per_step=0.5)) == pytest.approx([0, 9, 18, 27, 36])


def test_a_probe_costs_one_more_call(tmp_path):
    def step(number):
        probe = {"budget/probe_rollouts": 32, "budget/probe_tokens": 2000} if number == 2 else {}
        return {"select/trained": 8, **probe}

    run = write_run(tmp_path / "run", ACCURACIES, step=step)
    assert seconds(run, costs(seconds_per_step=0.5)) == pytest.approx([0, 7, 18, 25, 32])  # 3.5 a step, and 4 once
    # of a prompt: four prompts side by side, each with 4 rollouts, 2 of them trained; the probe's 32 are spread on four
    assert seconds(run, costs(per="prompt")) == pytest.approx([0, 1.5, 4, 5.5, 7])


def test_seconds_of_a_run_that_shared_its_machine_are_compared(tmp_path):
    sweep = write_sweep(tmp_path / "sweep", ACCURACIES, alone=False, pods={}, grpo={}, step=trained(8))
    (row, *_) = compare_inputs([str(sweep)], costs=costs()).speed_ups
    assert (row.group, row.axis, row.ratio.ratio) == ("PODS", "seconds", pytest.approx(1))


def test_computed_seconds_ignore_machines_and_name_their_source(tmp_path):
    for label, count, threads in (("a", 16, 1), ("b", 8, 2)):
        for seed in (0, 1):
            run = tmp_path / f"{label}-{seed}"
            write_run(run, ACCURACIES, seed=seed, step=trained(count), threads=threads)
    arguments = [f"{label}={tmp_path}/{label}-*" for label in "ab"]
    result = compare_inputs(arguments, costs=costs())
    assert {row.axis: row.ratio.ratio for row in result.speed_ups}["seconds"] == pytest.approx(4 / 3)
    assert sum("a table" in note for note in result.notes) == 1
    assert not any("machine" in note for note in result.notes)
    table = tmp_path / "costs.json"
    curves = {"sampling": {"rollouts": [16], "seconds": [2]}, "update": {"rollouts": [8], "seconds": [1]}}
    table.write_text(json.dumps({"winnow_costs": 1, "source": "the paper", **curves}))
    printed = CliRunner().invoke(app, ["compare", *arguments, "--costs", str(table)])
    assert printed.exit_code == 0, printed.output
    assert printed.output.count("the paper") == 2  # above the costs of a step, and in the notes


@pytest.mark.parametrize(
    ("label", "keys"),
    [
        ("ppo", {"critic": {"form": "shared"}, "advantage": "gae"}),
        ("gvm", {"allocate": "gvm"}),
    ],
)
def test_work_that_the_costs_omit_is_noted(tmp_path, label, keys):
    write_run(tmp_path / "grpo", ACCURACIES, step=trained(8))
    write_run(tmp_path / "other", ACCURACIES, step=trained(8), **keys)
    notes = compare_inputs([f"grpo={tmp_path / 'grpo'}", f"{label}={tmp_path / 'other'}"], costs=costs()).notes
    omitted = [note.split(":")[0] for note in notes if "costs" in note and "a table" not in note]
    assert omitted == [label]


def test_a_run_that_lacks_the_work_of_its_steps_is_refused(tmp_path):
    run = write_run(tmp_path / "run", ACCURACIES)
    with refused(DataError, run, "step 0", "select/trained", code="data.incomplete"):
        compare_inputs([str(run)], costs=costs())


def test_seconds_of_a_file_cannot_be_computed_again(tmp_path):
    (tmp_path / "a.csv").write_text("hours,accuracy\n0,0.1\n1,0.5\n")
    (tmp_path / "b.csv").write_text("steps,accuracy\n0,0.1\n1,0.5\n")
    with refused(DataError, "a.csv", code="data.mismatch"):
        compare_inputs([str(tmp_path / "a.csv")], costs=costs())
    assert compare_inputs([str(tmp_path / "b.csv")], costs=costs()).axes == ["steps"]
