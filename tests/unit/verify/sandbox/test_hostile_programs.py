"""Every hostile program behind every layer, as root and as the user nobody: no breach, and the right ending."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile_programs import HOSTILE, PRIVILEGE, PROCESSES, SECRETS, Hostile
from hostile_world import run_list

import winnow
from winnow.verify.sandbox import Limits, Sandbox, SandboxError, choose, interpreter, landlock

HERE = Path(__file__).parent
LAYERS = ("bubblewrap", "landlock")
QUICK = [program for program in HOSTILE if not program.busy]
# Of those that burn a whole second each the one that ignores the signal: only the hard limit ends it.
BUSY = [p for p in HOSTILE if p.name == "busy and deaf" or p.sleeps]
OF_USERS = [program for program in (*PROCESSES, *PRIVILEGE, *SECRETS) if program in QUICK]


def sandbox(layer: Any) -> Sandbox:
    try:
        return choose(layer)
    except SandboxError as error:
        if layer == "landlock" and landlock.version():
            raise  # the kernel has it, so a refusal is winnow's fault
        pytest.skip(str(error))


def environment_of(base: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that imports winnow and numpy."""
    packages = [Path(winnow.__file__).parents[1], Path(np.__file__).parents[1], HERE]
    return {**base, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.pathsep.join(map(str, packages))}


def run_apart(
    layer: str,
    programs: list[Hostile],
    *,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
    **user: Any,
) -> dict[str, Any]:
    """The programs, run by a process of its own: to start one as another user forks the process that starts it, which
    takes longer than the program if that has imported what tests import.
    """
    sandbox(layer)
    command = [python, str(HERE / "hostile_world.py"), layer, json.dumps([p.name for p in programs])]
    environment = environment_of(os.environ) if environment is None else environment
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd="/", **user)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def run_as_nobody(layer: str, programs: list[Hostile]) -> dict[str, Any]:
    """The programs, run by an unprivileged user."""
    if os.geteuid() != 0:
        pytest.skip("already unprivileged: the other tests of this file are this test")
    sandbox(layer)
    python = interpreter.copied()
    environment = environment_of({**dict(python.environment), "PATH": os.environ["PATH"]})
    nobody: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []}
    if subprocess.run([python.executable, "-c", "import winnow"], env=environment, cwd="/", **nobody).returncode != 0:
        pytest.skip("this repository or its packages cannot be read by an unprivileged user")
    return run_apart(layer, programs, python=python.executable, environment=environment, **nobody)


def wrongs(programs: list[Hostile], runs: dict[str, Any]) -> list[tuple[str, Any]]:
    """The programs that got something, or ended as they should not have."""
    return [
        (program.name, runs[program.name])
        for program in programs
        if "breach" in runs[program.name]["stdout"] or runs[program.name]["ending"] not in program.endings
    ]


def test_the_list_is_long_and_names_are_unique():
    assert len({program.name for program in HOSTILE}) == len(HOSTILE) >= 44


@pytest.mark.parametrize("layer", LAYERS)
def test_no_program_breaches(layer: Any):
    report = run_apart(layer, [*QUICK, *BUSY])
    assert wrongs([*QUICK, *BUSY], report["runs"]) == []
    assert report["traces"] == []


@pytest.mark.slow  # Seconds of a processor for each program; the one that needs the hard limit is above.
@pytest.mark.parametrize("layer", LAYERS)
def test_no_busy_program_breaches(layer: Any):
    busy = [program for program in HOSTILE if program.busy]
    report = run_apart(layer, busy)
    assert wrongs(busy, report["runs"]) == []
    assert report["traces"] == []


@pytest.mark.parametrize("layer", LAYERS)
def test_no_program_breaches_an_unprivileged_harness(layer: Any):
    """Those whose refusal depends on the user: they act on processes, privileges, and what the harness holds."""
    report = run_as_nobody(layer, OF_USERS)
    assert wrongs(OF_USERS, report["runs"]) == []
    assert report["traces"] == []


@pytest.mark.slow  # The other programs meet the same layer above, as root and without a user's own limits.
@pytest.mark.parametrize("layer", LAYERS)
def test_no_quick_program_breaches_an_unprivileged_harness(layer: Any):
    report = run_as_nobody(layer, QUICK)
    assert wrongs(QUICK, report["runs"]) == []
    assert report["traces"] == []


def test_hostile_programs_succeed_without_a_sandbox():
    """So the sandbox is the cause of their failure above."""
    if sys.platform != "linux":
        pytest.skip("the programs use calls of Linux")
    unguarded = [program for program in HOSTILE if program.unguarded]
    tame = []
    for program in unguarded:  # each in a world of its own: they spoil it
        run = run_list(
            choose("unsafe"),
            [program],
            limits=Limits(cpu_seconds=20, wall_seconds=120, memory_mb=4096),
            strikes_after=0,
        )["runs"][program.name]
        tame += [] if "breach" in run["stdout"] else [(program.name, run)]
    assert len(unguarded) >= 25
    assert tame == []
