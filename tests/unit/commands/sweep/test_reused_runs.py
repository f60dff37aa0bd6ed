"""A sweep copies finished runs of other sweeps that are the same run, and no others."""

from __future__ import annotations

import json

import pytest

from winnow.commands.sweep.plan import read_plan, record, reuse
from winnow.config_file import load
from winnow.state.manifest import describe_run
from winnow.state.run_folder import has_finished_step
from winnow.state.sweep_folder import LedgerLine, SweepFolder, read_sweep
from winnow.training.resolve import resolve_members

SWEEP = """
config = "base.toml"
output = "OUT"
seeds = [0, 1]
[variants.LABEL]
select = "all"
[variants.other]
"optimizer.learning_rate" = RATE
"""


@pytest.fixture
def sweep_file(tmp_path):
    (tmp_path / "mine.py").write_text("def paid(prompt, rollout):\n    return 1.0\n")
    (tmp_path / "base.toml").write_text('steps = 2\nreward = { use = "mine.py:paid" }\n')

    def write(name, *, label, rate, reuse=()):
        path = tmp_path / f"{name}.toml"
        text = SWEEP.replace("OUT", str(tmp_path / name)).replace("LABEL", label).replace("RATE", str(rate))
        path.write_text(f"reuse = {json.dumps([str(tmp_path / other) for other in reuse])}\n{text}")
        return read_plan(path, {})

    return write


def trained(plan, *, finished=("a",), alone=True):
    """Write the folder of a sweep in which the runs of some labels are finished."""
    with SweepFolder.open(plan.output, resume=False) as folder:
        record(plan, folder)
        for run in read_sweep(folder.path):
            run.path.mkdir()
            config = load(run.settings, [f"seed={run.seed}", f"output={run.path}"])
            described = describe_run(
                resolve_members(config, run.settings.parent).config,
                base=run.settings.parent,
                device="cpu",
                threads=1,
                inputs={},
            )
            (run.path / "manifest.json").write_text(json.dumps({"winnow_run": 1, **described}))
            (run.path / "metrics.jsonl").write_text('{"step":0,"budget/rollouts":8}\n')
            (run.path / ".lock").write_text("")
            ends = ("began", "finished") if run.label in finished else ("began", "stopped")
            for status in ends:
                folder.note(LedgerLine(run.label, run.seed, status, alone, 75 if status == "stopped" else None))


def reused(plan, *, resume=False):
    with SweepFolder.open(plan.output, resume=resume) as folder:
        record(plan, folder)
        return reuse(plan, folder)


@pytest.mark.parametrize("alone", [True, False])
def test_a_finished_run_of_the_same_configuration_and_seed_is_copied(sweep_file, alone):
    trained(sweep_file("first", label="a", rate=1e-3), finished=("a",), alone=alone)
    plan = sweep_file("second", label="b", rate=2e-3, reuse=["missing", "firs*"])
    assert reused(plan) == ["b/seed-0", "b/seed-1"]
    runs = {run.name: run for run in read_sweep(plan.output)}
    assert [run.finished for run in runs.values()] == [True, True, False, False]
    assert runs["b/seed-0"].alone is alone
    assert not (runs["b/seed-0"].path / ".lock").exists()
    assert not has_finished_step(runs["other/seed-0"].path)
    assert reused(plan, resume=True) == []  # and a resume accepts what was copied


def test_a_run_whose_reward_changed_since_is_trained_again(sweep_file, tmp_path):
    trained(sweep_file("first", label="a", rate=1e-3), finished=("a",))
    (tmp_path / "mine.py").write_text("def paid(prompt, rollout):\n    return 2.0\n")
    assert reused(sweep_file("second", label="b", rate=1e-3, reuse=["first"])) == []


def test_an_interrupted_copy_is_repeated(sweep_file):
    trained(sweep_file("first", label="a", rate=1e-3))
    plan = sweep_file("second", label="a", rate=2e-3, reuse=["first"])
    with SweepFolder.open(plan.output, resume=False) as folder:
        record(plan, folder)
        half = plan.output / "a" / ".seed-0.copy"
        half.mkdir()
        (half / "half").write_text("")
        assert reuse(plan, folder) == ["a/seed-0", "a/seed-1"]
    assert not half.exists()
    assert not (plan.output / "a" / "seed-0" / "half").exists()
