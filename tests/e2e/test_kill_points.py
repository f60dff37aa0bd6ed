"""Law 6 at named points: every write of a checkpoint, every phase of a step, and a save under way beside both.

Each group is a process of its own, a fork, which forks the lives that it ends; see kill_points.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from forked import python

# Of the writes and the phases every second one is always tried; each of the others is between two of these.
# Errors are in test_life.py and test_background_saves.py too, a model that is trained whole in test_resume.py.
SLOW = pytest.mark.slow
POINTS = Path(__file__).with_name("kill_points.py")
KILLED, ERROR, WENT_ON = "-9", "1", "0"


@pytest.mark.parametrize(
    ("group", "part", "at_least", "ends"),
    [
        ("writes", "even", 16, {KILLED}),
        pytest.param("writes", "odd", 16, {KILLED}, marks=SLOW),
        ("phases", "even", 13, {KILLED}),
        pytest.param("phases", "odd", 12, {KILLED}, marks=SLOW),
        ("under_way", "all", 11, {KILLED, ERROR, WENT_ON}),
        pytest.param("failures", "all", 27, {ERROR, WENT_ON}, marks=SLOW),
        pytest.param("full", "all", 6, {KILLED}, marks=SLOW),
    ],
)
def test_a_run_that_ends_at_any_point_resumes_to_the_bits_of_one_that_did_not(group, part, at_least, ends):
    """Parameters, moments, reference, history and both logs; and the folder holds no other checkpoints."""
    done = python(POINTS, group, part, timeout=1100)
    assert done.returncode == 0, done.stderr
    lines = [line.split(" | ", maxsplit=2) for line in done.stdout.splitlines()]
    assert [line for line in lines if line[2:] != ["equal"]] == []
    assert len({name for name, _, _ in lines}) == len(lines) >= at_least
    assert {how for _, how, _ in lines} == ends
