"""`winnow train --ranks 2` as a user starts it: to its end, interrupted, killed, resumed to the same bits.

Each launch costs what importing torch three times costs, so one run has several lives here.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from winnow.config import Config
from winnow.evaluation.settings import format_toml


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
    assert re.search(r"\brank 1 of 2\b.*\bSIGKILL\b", errors.splitlines()[-1])
    assert "Traceback" not in errors
    assert ranks_of(process.pid) == []


@linux
@pytest.mark.timeout(900)
def test_a_rank_that_is_killed_is_named_and_ends_the_run(tmp_path, config):
    short = {"steps": 500, "rollout.max_new_tokens": 8, "checkpoint.every": 0}  # steps, of which it does a few
    killed(config, tmp_path / "run", *(f"--set={key}={value}" for key, value in short.items()), step=0)


@linux
@pytest.mark.slow  # four launches of two ranks: 80 seconds of CPU
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
