"""Every benchmark that a page cites still runs: its quick form (--quick), with the settings of benchmarks/quick.py.

The quickest are in the suite. The others are the weekly set: pytest -m weekly tests/unit/test_quick_benchmarks.py
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import forked
from published_rollouts import published_folder

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import quick

REPOSITORY = Path(__file__).parents[2]
BENCHMARKS = REPOSITORY / "benchmarks"

SUITE = {"parity"}  # it needs a few seconds of a core
NEEDS = {"planned_trl": "trl", "trl_race": "trl", "trl_step": "trl"}  # packages of another environment
WEIGHTS = {"published", "trl_race"}  # they read the published model
NO_SCRIPT = {"decisions", "frame", "quick"}  # modules that benchmarks import


def cited() -> set[str]:
    """The scripts that a page names, and those whose result it names."""
    others = ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")
    pages = [*(REPOSITORY / name for name in others), *(REPOSITORY / "docs").glob("*.md")]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    names = {name for text in texts for name in re.findall(r"benchmarks/(\w+)\.py", text)}
    results = {name for text in texts for name in re.findall(r"benchmarks/results/([\w.-]+\.json)", text)}
    commands = [json.loads((BENCHMARKS / "results" / name).read_text()).get("command", "") for name in results]
    names |= {name for command in commands for name in re.findall(r"benchmarks/(\w+)\.py", command)}
    return {name for name in names if (BENCHMARKS / f"{name}.py").is_file()}


def test_every_cited_benchmark_has_a_quick_form():
    assert len(cited()) > 12
    assert cited() - NO_SCRIPT - set(quick.SETTINGS) == set()
    assert set(quick.SETTINGS) - cited() == set()


def test_a_benchmark_without_a_quick_form_is_refused():
    with pytest.raises(SystemExit, match="trl_peer"):
        quick.settings_of("trl_peer")


def test_a_quick_run_is_longer_than_its_warm_up():
    first = re.search(r"^FIRST = (\d+)", (BENCHMARKS / "step_costs.py").read_text(encoding="utf-8"), re.M)
    assert quick.SETTINGS["step_costs"]["steps"] > int(first[1])


@pytest.mark.timeout(7200)  # for those of the weekly set, on a machine that may be busy
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SUITE else pytest.mark.weekly) for name in quick.SETTINGS]
)
def test_it_runs_in_quick_form_and_keeps_no_result(name: str):
    if name in WEIGHTS:
        published_folder()
    if importlib.util.find_spec(NEEDS.get(name, "winnow")) is None:
        pytest.skip(f"{name} needs the extra {NEEDS[name]}")
    before = set((BENCHMARKS / "results").iterdir())
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "HF_HUB_OFFLINE": "1"}
    script = BENCHMARKS / f"{name}.py"
    if name in SUITE:
        done = forked.python(script, "--quick", cwd=REPOSITORY, env=environment)
    else:
        command = [sys.executable, str(script), "--quick"]
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert set((BENCHMARKS / "results").iterdir()) == before
