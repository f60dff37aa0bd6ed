"""Law 6 at named points: every write of a checkpoint, every phase of a step, and a save in progress beside both.

Each group is a process, a fork, which forks the lives that it ends; see kill_points.py.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path

import ahead_lives
import kill_points
import pytest
import rank_kill_points
import value_kill_points

from forked import python

# The few hold one point of each kind, in one run. test_life.py and test_background_saves.py have the errors,
# test_resume.py a model that is trained whole. .ci/run runs the slow groups in turn.
SLOW = pytest.mark.slow
POINTS = Path(__file__).with_name("kill_points.py")
KILLED, ERROR, WENT_ON = "-9", "1", "0"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("group", "points", "ends"),
    [
        ("few", 7, {KILLED, ERROR}),
        pytest.param("writes", 32, {KILLED}, marks=SLOW),
        pytest.param("phases", 26, {KILLED}, marks=SLOW),
        pytest.param("under_way", 11, {KILLED, ERROR, WENT_ON}, marks=SLOW),
        pytest.param("failures", 28, {ERROR, WENT_ON}, marks=SLOW),
        pytest.param("full", 6, {KILLED}, marks=SLOW),
        ("few_turns", 2, {KILLED}),
        ("few_sizes", 4, {KILLED}),
        pytest.param("sizes", 6, {KILLED}, marks=SLOW),
        pytest.param("turns", 20, {KILLED}, marks=SLOW),
    ],
)
def test_a_run_that_ends_at_any_point_resumes_to_the_same_bits(group, points, ends):
    """Parameters, moments, reference, history and both logs; and the folder holds no other checkpoints."""
    done = python(POINTS, group, timeout=1100)
    assert done.returncode == 0, done.stderr
    lines = [line.split(" | ", maxsplit=2) for line in done.stdout.splitlines()]
    assert [line for line in lines if line[2:] != ["equal"]] == []
    assert len({name for name, _, _ in lines}) == len(lines) == points
    assert {how for _, how, _ in lines} == ends


def named_points() -> list[kill_points.Point]:
    modules = (kill_points, value_kill_points, ahead_lives, rank_kill_points)
    lists = (value for module in modules for value in vars(module).values() if isinstance(value, list))
    each = (part for some in lists for entry in some for part in (entry if type(entry) is tuple else (entry,)))
    return [part for part in each if isinstance(part, kill_points.Point)]


def test_every_point_is_a_function_that_exists():
    """A point of a function that was renamed strikes nothing, and only a slow test would find that."""
    points = named_points()
    assert len(points) > 100
    for point in points:
        for function in (point.function, point.since):
            module, _, attribute = function.partition(":")
            home = importlib.import_module(f"winnow.{module}")
            assert callable(functools.reduce(getattr, attribute.split("."), home)), point
