"""rollout.ahead = 1: the same bits regardless of which side takes longer, and after a kill at any point.

Each group is a process, a fork, which forks the lives that it compares; see ahead_lives.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from forked import python

SLOW = pytest.mark.slow
LIVES = Path(__file__).with_name("ahead_lives.py")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("group", "count"), [("few", 3), pytest.param("sleeps", 10, marks=SLOW), pytest.param("points", 12, marks=SLOW)]
)
def test_a_run_one_step_ahead_has_the_same_bits(group, count):
    """Parameters, moments, history and both logs, with a slow engine and after SIGKILL and a resume."""
    done = python(LIVES, group, timeout=1100)
    assert done.returncode == 0, done.stderr
    lines = [line.split(" | ", maxsplit=2) for line in done.stdout.splitlines()]
    assert [line for line in lines if line[2:] != ["equal"]] == []
    assert len({name for name, _, _ in lines}) == len(lines) == count
    assert {(how, name.startswith("sleeps")) for name, how, _ in lines} <= {("0", True), ("-9", False)}
