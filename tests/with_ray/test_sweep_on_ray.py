"""Sweeps on the real Ray: a cluster on this machine, with small processes in place of `winnow train`.

pip install -e '.[test,ray]' && pytest tests/with_ray
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from refusals import refused
from winnow.core.stop_signals import Stop
from winnow.errors import ConfigError
from winnow.version import __version__
from winnow_lab.sweep.display import SweepDisplay
from winnow_lab.sweep.loop import Sweep
from winnow_lab.sweep.on_ray import OnRay, run_on_node
from winnow_lab.sweep_folder import Contents, SweepFolder, read_sweep

pytest.importorskip("ray", reason="needs Ray: pip install 'winnow-rl[ray]'")

# The seed selects the behaviour: 2 fails, and 1 runs until a signal or the file "go" ends it.
FAKE = """
import json, os, pathlib, signal, sys, time
run, seed = pathlib.Path(sys.argv[1]), int(sys.argv[2])
signal.signal(signal.SIGTERM, lambda *_: ((run / "saved").touch(), sys.exit(75)))
run.mkdir(exist_ok=True)
(run / "manifest.json").write_text("{}")
print(os.getpid(), flush=True)
if seed == 2:
    sys.exit("something broke")
(run / "metrics.jsonl").write_text(json.dumps({"step": 0, "budget/rollouts": 1}) + chr(10))
while seed == 1 and not (run / "go").exists():
    time.sleep(0.01)
"""


def fake_command(run):
    return ["-c", FAKE, str(run.path), str(run.seed)]


class StopOnFile(Stop):
    """A fake signal that arrives once a file exists."""

    def __init__(self, path):
        self._path = path

    @property
    def requested(self):
        return self._path is not None and self._path.exists()


def swept(path, seeds, *, cpus, resume=False, stop_at=None):
    """(how each run ended, the words of each printed line)"""
    output = StringIO()
    with SweepFolder.open(path, resume=resume) as folder:
        folder.describe(Contents({"a": {}}, tuple(seeds), None, {}))
        (path / "a").mkdir(exist_ok=True)
        with OnRay("local", path, cpus=cpus, gpus=0) as launcher:
            display = SweepDisplay(Console(file=output, width=200), None)
            sweep = Sweep(folder, read_sweep(path), {"a": 1}, launcher, display, fake_command)
            sweep.run(StopOnFile(stop_at))
    return sweep.ends, [line.split() for line in output.getvalue().splitlines()]


def line_of(lines, *words):
    """The first printed line that contains these words in a row."""
    return next(line for line in lines if " ".join(words) in " ".join(line))


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A sweep that is stopped while one run continues; each run requests every CPU, so another has to wait."""
    path = tmp_path_factory.mktemp("ray") / "s"
    cpus = os.cpu_count() or 1
    return path, cpus, swept(path, [0, 2, 1, 3], cpus=cpus, stop_at=path / "a" / "seed-1" / "metrics.jsonl")


def test_a_task_ends_as_its_process_does_and_a_failure_is_printed(first):
    path, _, (ends, lines) = first

    assert (ends["a/seed-0"], ends["a/seed-2"]) == ("finished", "failed")
    assert line_of(lines, "submitted", "a/seed-0")
    assert "1;" in line_of(lines, "failed", "a/seed-2:")
    assert ["something", "broke"] in [line[-2:] for line in lines]
    assert not any(run.alone for run in read_sweep(path))


def test_a_signal_cancels_tasks_which_save_and_can_be_resumed(first):
    path, cpus, (ends, lines) = first

    assert (ends["a/seed-1"], ends["a/seed-3"]) == ("stopped", "stopped")
    assert (path / "a" / "seed-1" / "saved").exists()
    assert line_of(lines, "stopped", "a/seed-3")
    assert not (path / "a" / "seed-3").exists()
    (path / "a" / "seed-1" / "go").touch()
    again, _ = swept(path, [0, 2, 1, 3], cpus=cpus, resume=True)
    assert again == {"a/seed-2": "failed", "a/seed-1": "finished", "a/seed-3": "finished"}


def test_a_node_with_another_folder_or_version_reports_it(tmp_path):
    def problem(token="a", version=__version__, cwd=tmp_path):
        code, text = run_on_node([], str(tmp_path / "log"), str(cwd), str(tmp_path / "probe"), token, version)
        assert code is None
        return text

    assert str(tmp_path) in problem()
    (tmp_path / "probe").write_text("a")
    assert str(tmp_path) in problem(token="b")
    assert __version__ in problem(version="0")
    assert str(tmp_path / "no") in problem(cwd=tmp_path / "no")


def test_a_cluster_that_cannot_be_reached_is_an_error(tmp_path):
    with refused(ConfigError, "127.0.0.1:1", key="ray", code="config.cluster"):
        OnRay("127.0.0.1:1", tmp_path, cpus=1, gpus=0)


KILLED = """
import pathlib, sys
sys.path[:0] = sys.argv[2:]
import test_sweep_on_ray as here
here.swept(pathlib.Path(sys.argv[1]), [1], cpus=1)
"""


def test_runs_end_when_the_sweep_is_killed(tmp_path):
    folders = [str(folder) for folder in Path(__file__).parents[:2]]  # this one, and that of refusals.py
    sweep = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "s"), *folders])
    run = tmp_path / "s" / "a" / "seed-1"
    while not (run / "metrics.jsonl").exists():  # at most until the suite's time limit
        assert sweep.poll() is None
        time.sleep(0.05)
    process = int(run.with_name("seed-1.log").read_text())
    sweep.send_signal(signal.SIGKILL)
    sweep.wait()
    while Path(f"/proc/{process}").exists():
        time.sleep(0.05)
