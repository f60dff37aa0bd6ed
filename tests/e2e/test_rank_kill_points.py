"""Law 6 among several ranks: SIGKILL of any one of them, at named points, by `winnow train --ranks 2`.

The run ends in time and names the rank, no process of it is left, and resumed it leaves what a run does that nobody
disturbed. See rank_kill_points.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kill_points import PLAYED, chaos
from rank_kill_points import POINTS, STRIKE

from winnow.config import Config
from winnow.config_keys import format_toml

LIMIT_SECONDS = 60.0  # docs/ranks.md, from the kill to the end of the last process
STEPS = 4
OF_THE_CLOCK = (*chaos.CLOCK, "ranks/seconds_waiting", "ranks/waiting_share", "ranks/slowest")


@pytest.fixture
def config(tmp_path, smallest):
    def written(learner):
        settings = smallest(
            steps=STEPS,
            checkpoint={"every": 1, "keep_last": 1},
            rollout={"prompts_per_step": 2, "rollouts_per_prompt": 4, "max_new_tokens": 8},
            select={"use": f"{Path(__file__).with_name('rank_kill_points.py')}:keep"},
            allocate="gvm",
            probe={"every": 2, "rollouts_per_prompt": 2, "gradient_norm": "none"},
            evaluate={"every": 2, "problems": 2, "rollouts_per_prompt": 2},
            terms=[{"use": "kl", "coefficient": 0.05}],
            update={"updates_per_step": 2},
            verify={"workers": 2, "timeout_seconds": 120.0},
            ranks={"learner": "replicated" if learner == "played" else learner},
        )
        settings["select"].pop("keep_per_prompt")
        if learner == "played":
            del settings["reward"]
            settings["prompt"] = {"template": "chat"}
            settings["rollout"]["max_new_tokens"] = 40
            settings["environment"] = PLAYED["environment"]
        path = tmp_path / "run.toml"
        path.write_text(format_toml(Config.model_validate(settings)))
        return path

    return written


def launched(config, run, *more, strike=""):
    """Exit code, stderr, and when it ended. Everything that it starts carries the run's name in its environment."""
    command = [sys.executable, "-m", "winnow", "train", str(config), "--output", str(run), "--ranks", "2", *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", chaos.MARKER: str(run), **({STRIKE: strike} if strike else {})}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return done.returncode, done.stderr, time.time()


def left(run, monkeypatch):
    monkeypatch.setattr(chaos, "STEPS", STEPS)
    monkeypatch.setattr(chaos, "CLOCK", OF_THE_CLOCK)
    return chaos.what_is_left(run)


def killed(config, run, name, rank, learner):
    """One life of a run that is struck. Returns the seconds from the kill to the end, of its parent and of all."""
    struck = run.parent / f"{run.name}.struck"
    code, errors, ended = launched(config, run, strike=f"{name}|{rank}|{struck}")
    assert struck.exists(), f"never struck: {code} {errors}"
    orphans = chaos.orphans(run)
    gone = time.time()
    began = struck.stat().st_mtime
    print(json.dumps([name, learner, rank, code, round(ended - began, 1), round(gone - began, 1)]), flush=True)
    assert (code, orphans) == (1, [])
    assert re.search(rf"\brank {rank} of 2\b.*\bSIGKILL\b", errors)
    assert "Traceback" not in errors
    assert gone - began < LIMIT_SECONDS


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.slow  # 16 runs of two ranks, each resumed: minutes of CPU; one is in test_ranks_launch.py
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("learner", ["replicated", "sharded", "played"])
def test_a_run_whose_rank_is_killed_ends_and_resumes_to_the_same_bits(learner, tmp_path, config, monkeypatch):
    path, differs = config(learner), {}
    code, errors, _ = launched(path, tmp_path / "calm")
    assert code == 0, errors
    calm = left(tmp_path / "calm", monkeypatch)
    for place, (_, rank, point) in enumerate(each for each in POINTS if each[0] == learner):
        run = tmp_path / str(place)
        killed(path, run, point.name, rank, learner)
        code, errors, _ = launched(path, run, *(["--resume"] if (run / "manifest.json").exists() else []))
        assert code == 0, (point.name, errors)
        found = left(run, monkeypatch)
        differs[point.name] = sorted(part for part in {*found, *calm} if found.get(part) != calm.get(part))
        print(json.dumps([point.name, "resumed", differs[point.name]]), flush=True)
    assert {name: parts for name, parts in differs.items() if parts} == {}
