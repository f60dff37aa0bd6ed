"""A sweep or an evaluation that can be resumed is refused, or exits, with the command that resumes it."""

from __future__ import annotations

import json
import shlex
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from winnow.commands import app
from winnow.recipes import recipe_paths
from winnow.state.folder import SWEEP

CONFIG = recipe_paths()["arithmetic"]


def resume_command(*arguments: str) -> list[str]:
    """The words of the command that a call prints on standard error."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code in (1, 2, 75), result.output
    (line,) = [line for line in result.stderr.splitlines() if "winnow " in line and "--resume" in line]
    return shlex.split(line[line.index("winnow ") :])


def test_a_started_sweep_is_refused_with_the_command_that_resumes_it(tmp_path):
    sweep = tmp_path / "a sweep"
    sweep.mkdir()
    contents = {"winnow_sweep": 1, "labels": {"all": {}}, "seeds": [1], "baseline": None, "inputs": {}}
    (sweep / SWEEP).write_text(json.dumps(contents))
    (tmp_path / "a.toml").write_text(f'config = "{CONFIG}"\nseeds = [1]\n[variants.all]\nselect = "all"\n')
    call = ("sweep", str(tmp_path / "a.toml"), "--output", str(sweep))
    assert resume_command(*call) == ["winnow", *call, "--resume"]


@pytest.mark.parametrize("ends", [("finished", "failed"), ("finished", "stopped")])
@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_an_unfinished_sweep_exits_with_the_command_that_resumes_it(monkeypatch, ends, resume):
    monkeypatch.setattr("winnow_lab.sweep.loop.train_sweep", lambda *_, **__: SimpleNamespace(ends=ends))
    assert resume_command("sweep", "a.toml", *resume) == ["winnow", "sweep", "a.toml", "--resume"]


def test_a_rank_of_another_launcher_prints_no_command(monkeypatch):
    """Its own words would start a single process."""
    monkeypatch.setattr("winnow_lab.sweep.loop.train_sweep", lambda *_, **__: SimpleNamespace(ends=("failed",)))
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "--resume" not in CliRunner().invoke(app, ["sweep", "a.toml"]).stderr


def test_a_started_evaluation_is_refused_with_the_command_to_resume(tmp_path):
    (tmp_path / "settings.json").write_text("{}")
    call = ("eval", "bundled", "--task", "arithmetic", "--output", str(tmp_path))
    assert resume_command(*call) == ["winnow", *call, "--resume"]


REWARD = "def reward(prompt, rollout):\n    raise NameError('typo')\n"


@pytest.mark.parametrize(("finished", "resumed"), [(True, True), (False, False)])
def test_a_failed_run_is_resumed_only_if_a_step_was_finished(tmp_path, monkeypatch, finished, resumed):
    """Otherwise nothing was saved: a resume would refuse the corrected reward, and the first command works."""
    (tmp_path / "mine.py").write_text(REWARD)
    monkeypatch.setattr("winnow.commands.train.here.has_finished_step", lambda folder: finished)
    few = ("rollout.prompts_per_step=2", "select=all", "task.size=8", "evaluate.problems=1", "device=cpu")
    few += ("verify.workers=0", "rollout.max_new_tokens=4")
    sets = [word for key in (f"reward={tmp_path}/mine.py:reward", *few) for word in ("--set", key)]
    output = ("--output", str(tmp_path / "run"), "--progress", "none")
    result = CliRunner().invoke(app, ["train", str(CONFIG), *sets, *output])

    assert result.exit_code == 1, result.output
    assert (result.stderr.count("--resume") == 1) == resumed
