"""`winnow train --ranks 2`: to its end, interrupted, killed, resumed to the same bits.

A launch as a user starts it costs what importing torch three times costs. By default the launcher is in this process
and its ranks are forks; the slow test starts whole interpreters, and one run has several lives there.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import forked
from processes import alive, eventually
from winnow.commands import app
from winnow.commands.train import elastic
from winnow.config import Config
from winnow.config_keys import format_toml


def start(config, output, *more):
    """Where what it prints has to be ASCII."""
    command = [sys.executable, "-m", "winnow", "train", str(config), "--output", str(output), "--ranks", "2", *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "ascii"}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def wait_for(run, step, process):
    """Until a step is logged; the suite's time limit ends it."""
    while not (run / "metrics.jsonl").exists() or f'"step":{step},' not in (run / "metrics.jsonl").read_text():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def ranks_of(parent):
    """The process ids of the ranks, in their order."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                father = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if father == str(parent) and b"spawn_main" in words:
                found.append(int(entry.name))
    return sorted(found)


def digest(run):
    model = run / "checkpoints" / "step-000006" / "model.safetensors"
    return hashlib.sha256(model.read_bytes()).hexdigest()


@pytest.fixture
def config(tmp_path, smallest):
    settings = smallest(steps=6, rollout={"max_new_tokens": 96}, checkpoint={"every": 2}, verify={"workers": 1})
    path = tmp_path / "run.toml"
    path.write_text(format_toml(Config.model_validate(settings)))
    return path


linux = pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks in /proc")


def interrupted(config, run):
    """Launch, and end by SIGTERM when a step is done."""
    process = start(config, run)
    wait_for(run, 1, process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    assert process.returncode == 75, errors
    last = errors.splitlines()[-1]
    command = shlex.split(last[last.index("winnow train") :])
    assert command[:3] == ["winnow", "train", str(config)]
    assert {"--resume", "--ranks"} <= set(command)


def killed(config, run, *more, step):
    """Launch, and kill rank 1 when a step is done."""
    process = start(config, run, *more)
    wait_for(run, step, process)
    victim = ranks_of(process.pid)[1]
    os.kill(victim, signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == 1, errors
    assert re.search(r"\brank 1 of 2\b.*\bSIGKILL\b", errors)  # the last line may be the command that continues
    assert "Traceback" not in errors
    assert ranks_of(process.pid) == []


@pytest.fixture
def forked_ranks(monkeypatch):
    """Ranks that are started from here on are forks of the process of forked.py."""
    launch_config = elastic._launch_config

    def forks(*arguments):
        made = launch_config(*arguments)
        assert made.start_method == "spawn"
        made.start_method = "forkserver"
        return made

    monkeypatch.setattr(elastic, "_launch_config", forks)
    forked.context()


@pytest.mark.timeout(900)
def test_a_rank_that_is_killed_is_named_and_ends_the_run(tmp_path, config, forked_ranks):
    def kill_rank_1():
        while not metrics.exists() or '"step":0,' not in metrics.read_text():
            if over.wait(0.02):
                return
        children = multiprocessing.active_children()  # ranks of another test may still serve: those are daemons
        victims.extend(sorted((each for each in children if not each.daemon), key=lambda rank: rank.pid))
        os.kill(victims[1].pid, signal.SIGKILL)

    metrics, over, victims = tmp_path / "run" / "metrics.jsonl", threading.Event(), []
    short = {"steps": 500, "rollout.max_new_tokens": 8, "checkpoint.every": 0, "verify.workers": 0}  # it does a few
    options = ("--output", str(tmp_path / "run"), "--ranks", "2", *(f"--set={key}={short[key]}" for key in short))
    killer = threading.Thread(target=kill_rank_1)
    killer.start()
    result = CliRunner().invoke(app, ["train", str(config), *options])
    over.set()
    killer.join()
    assert result.exit_code == 1, result.output
    assert len(victims) == 2
    assert re.search(r"\brank 1 of 2\b.*\bSIGKILL\b", result.stderr.splitlines()[-1])
    assert "Traceback" not in result.stderr
    assert not any(rank.is_alive() for rank in victims)


@linux
@pytest.mark.slow  # four launches of two ranks: 80 seconds of CPU; a launch of forks is above
@pytest.mark.timeout(1800)
def test_two_ranks_interrupted_and_killed_end_as_an_undisturbed_run(tmp_path, config):
    calm, run = tmp_path / "c\xe4lm", tmp_path / "run"
    undisturbed = start(config, calm)
    printed, errors = undisturbed.communicate()
    assert undisturbed.returncode == 0, errors
    assert printed.splitlines()[-1].endswith(f" {tmp_path}/c\\xe4lm/checkpoints/step-000006")
    assert printed.count("\n1/6 ") == 1  # the writer alone shows progress

    interrupted(config, run)
    killed(config, run, "--resume", step=3)
    last = start(config, run, "--resume")
    _, errors = last.communicate()
    assert last.returncode == 0, errors
    assert digest(run) == digest(calm)


@linux
@pytest.mark.slow  # a launch of two ranks: 20 seconds of CPU
@pytest.mark.timeout(900)
def test_ranks_whose_parent_is_killed_save_and_exit(tmp_path, config):
    process = start(config, tmp_path / "run")
    wait_for(tmp_path / "run", 0, process)
    victims = ranks_of(process.pid)
    process.kill()
    assert eventually(lambda: not any(map(alive, victims)))
    process.communicate()
    assert list((tmp_path / "run" / "checkpoints").iterdir())
