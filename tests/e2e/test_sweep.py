"""`winnow sweep` from its file to finished runs; its loop, signals and kills: tests/unit/winnow_lab/sweep."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from chat_templates import render_here
from refusals import check_refusal, refusal_of
from winnow.commands import app
from winnow.installed import is_installed
from winnow.state.logbook import read_metrics
from winnow.state.saved_runs import read_manifest
from winnow_lab.sweep.plan import read_plan
from winnow_lab.sweep.process import OnThisMachine, ProcessEnd
from winnow_lab.sweep_folder import read_sweep

CONFIGS = Path(__file__).parents[2] / "configs"
# Two runs of two steps.
SWEEP = """
config = "arithmetic"
output = "sweeps/small"
seeds = [5]
baseline = "all"
[set]
steps = 2
threads = 1
device = "cpu"
rollout = { prompts_per_step = 4, rollouts_per_prompt = 4 }
task.size = 64
evaluate = { problems = 4, rollouts_per_prompt = 2, greedy = false }
verify.workers = 0
[variants.all]
select = "all"
[variants.two]
"select.keep_per_prompt" = 2
"""


def called(*arguments):
    return CliRunner().invoke(app, ["sweep", *map(str, arguments)])


def in_this_process(arguments):
    """`python ARGUMENTS`, which start winnow."""
    option, winnow, *command = arguments
    assert (option, winnow) == ("-m", "winnow")
    return CliRunner().invoke(app, command)


class Ended:
    """A run that was trained in this process."""

    def __init__(self, run, arguments):
        done = in_this_process(arguments)
        run.log.write_text(done.output)
        self.end = ProcessEnd(done.exit_code)

    def poll(self):
        return self.end

    def wait(self, seconds):
        return self.end


def test_a_sweep_trains_each_configuration_and_is_resumed_once_finished(tmp_path, monkeypatch):
    """Each command in this process; test_run_sweep.py starts children as a sweep does."""

    def compared(arguments, *, check):
        return SimpleNamespace(returncode=in_this_process([*arguments[1:], "--no-plot"]).exit_code)

    render_here(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(OnThisMachine, "start", lambda self, run, arguments: Ended(run, arguments))
    monkeypatch.setattr("winnow_lab.sweep.process.subprocess", SimpleNamespace(run=compared))
    (tmp_path / "small.toml").write_text(SWEEP)
    result = called("small.toml")

    assert result.exit_code == 0, (result.output, [p.read_text() for p in tmp_path.rglob("*.log")])
    runs = read_sweep(tmp_path / "sweeps" / "small")
    assert [(run.name, run.finished, run.alone) for run in runs] == [
        ("all/seed-5", True, True),
        ("two/seed-5", True, True),
    ]
    for run, kept in zip(runs, (16, 8), strict=True):
        config = read_manifest(run.path).config
        assert (config["seed"], config["steps"]) == (5, 2)
        assert [row["select/kept"] for row in read_metrics(run.path) if "budget/rollouts" in row] == [kept] * 2
    assert re.search(r"two/seed-5 in \d+:\d+", result.output)

    again = called("small.toml")
    assert again.exit_code == 2
    check_refusal(refusal_of(again), "2 of its 2", code="run_folder.taken")
    assert called("small.toml", "--resume").exit_code == 0
    written = {path.name for path in (tmp_path / "sweeps" / "small").glob("comparison*/*")}
    assert {"curves.csv", "made_from.json"} <= written
    assert not (tmp_path / "sweeps" / "small" / "comparison-2").exists()  # the first one lacks nothing


@pytest.mark.parametrize("path", sorted((CONFIGS / "sweeps").glob("*.toml")), ids=lambda path: path.stem)
def test_every_sweep_that_comes_with_winnow_is_sound(path):
    if tomllib.loads(path.read_text()).get("config") == "smollm2_instructions" and not is_installed("if_verifiable"):
        pytest.skip("its rules need the extra `instructions`")
    plan = read_plan(path, {})

    assert len(plan.settings) > 1
    assert plan.file.baseline in plan.settings
