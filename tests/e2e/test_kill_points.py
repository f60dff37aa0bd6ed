"""Law 6 at named points: every write of a checkpoint, every phase of a step, and a save under way beside both.

Each group is a process of its own, which forks the lives that it ends; see kill_points.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

POINTS = Path(__file__).with_name("kill_points.py")
KILLED, ERROR, WENT_ON = "-9", "1", "0"


@pytest.mark.parametrize(
    ("group", "at_least", "ends"),
    [
        ("writes", 32, {KILLED}),
        ("phases", 23, {KILLED}),
        ("under_way", 11, {KILLED, ERROR, WENT_ON}),
        ("failures", 27, {ERROR, WENT_ON}),
        ("full", 6, {KILLED}),
    ],
)
def test_a_run_that_ends_at_any_point_resumes_to_the_bits_of_one_that_did_not(group, at_least, ends):
    """Parameters, moments, reference, history and both logs; and the folder holds no other checkpoints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(POINTS), group], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.split(" | ", maxsplit=2) for line in done.stdout.splitlines()]
    assert [line for line in lines if line[2:] != ["equal"]] == []
    assert len({name for name, _, _ in lines}) == len(lines) >= at_least
    assert {how for _, how, _ in lines} == ends
