"""The short form of scripts/chaos: runs killed at random moments end with the bytes of undisturbed ones."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from synthetic_run import RIGHT, WRONG, group
from winnow.state.logbook import Logbook

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import chaos  # noqa: E402


@pytest.mark.slow  # test_kill_points.py ends runs at a hundred points, and test_resume.py programs that were started
def test_runs_killed_at_named_moments_end_with_the_same_bytes():
    command = [sys.executable, str(BENCHMARKS / "chaos.py"), "--kills", "2", "--named-only"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--configs", "gvm_window", "lora_kl"], env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("2 of 2 kills")


def write(run, *, weights=b"1", reward=0.5, seconds=1.0, length=9):
    final = run / "checkpoints" / f"step-{chaos.STEPS:06d}"
    final.mkdir(parents=True)
    (final / "model.safetensors").write_bytes(weights)
    (final / "manifest.json").write_text(str(length))
    right = dataclasses.replace(RIGHT, reward=reward, seconds=seconds)
    Logbook(run, seed=0).write(0, {}, [group("toy", (right, WRONG))], [])
    (run / "metrics.jsonl").write_text(f'{{"step":0,"reward/mean":0.5,"seconds/step":{seconds}}}\n')
    return chaos.what_is_left(run)


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({}, []),
        ({"seconds": 2.0, "length": 10}, []),
        ({"weights": b"2"}, ["model.safetensors"]),
        ({"reward": 1.0}, ["rollouts"]),
    ],
)
def test_only_what_the_clock_said_may_differ(tmp_path, change, differs):
    one, other = write(tmp_path / "one"), write(tmp_path / "other", **change)
    assert [name for name in one if one[name] != other[name]] == differs


def test_what_a_killed_trainer_leaves_behind_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(chaos, "GONE_SECONDS", 0.0)
    log = tmp_path / "log"
    environment = {**os.environ, chaos.MARKER: str(log)}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment) as left:
        while not (found := chaos.orphans(log)):
            assert left.poll() is None
        assert "input()" in found[0]
        left.communicate(b"\n")
    assert chaos.orphans(log) == []
