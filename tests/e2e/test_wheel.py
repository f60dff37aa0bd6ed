"""The wheel has what a new user needs: in an empty folder it trains a recipe, and a configuration that it wrote itself.

One interpreter sees the installed package alone, and sees it again after it was moved. The laboratory's commands are
those of the wheel's entry points.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hatchling", reason="it builds the wheel: pip install 'winnow-rl[test]'")

REPOSITORY = Path(__file__).parents[2]
SMALL = (
    "device=cpu", "threads=1", "rollout.prompts_per_step=2", "rollout.rollouts_per_prompt=4",
    "select.keep_per_prompt=2", "task.size=64", "evaluate.problems=2", "evaluate.rollouts_per_prompt=2",
    "evaluate.greedy=false", "verify.workers=0",
)  # fmt: skip
# The calls of each folder in turn, to which the package is moved. winnow is imported anew, and torch once.
SCRIPT = """
import json, os, sys
from typer.testing import CliRunner

place = os.environ["PYTHONPATH"]
for site, calls in json.loads(sys.argv[1]):
    os.rename(place, site)
    sys.path[sys.path.index(place)] = place = site
    for name in [name for name in sys.modules if name.partition(".")[0] in ("winnow", "winnow_lab")]:
        del sys.modules[name]
    from winnow.commands import app
    assert sys.modules["winnow.commands.command_line"].__file__.startswith(site)
    for call in calls:
        result = CliRunner().invoke(app, call)
        assert result.exit_code == 0, (call, result.output, result.exception)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed package in site/, and with an empty working directory."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "empty").mkdir()
    build = ["hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run([sys.executable, "-m", *build], cwd=REPOSITORY, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    site = str(folder / "site")
    install = ["pip", "install", "--no-index", "--no-deps", "--no-compile", "--target", site, str(wheel)]
    subprocess.run([sys.executable, "-m", *install], check=True, capture_output=True)
    return folder


def run(folder: Path, calls: dict[str, list[list[str]]]) -> None:
    """Commands in one interpreter, in the empty folder, by the folder in which the package is then."""
    site = str(folder / "site")
    environment = {**os.environ, "PYTHONPATH": site, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    places = [(str(folder / name), of_place) for name, of_place in calls.items()]
    command = [sys.executable, "-c", SCRIPT, json.dumps(places)]
    done = subprocess.run(command, cwd=folder / "empty", env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def train(config: str, steps: int, *more: str) -> list[str]:
    return ["train", config, *(word for one in (f"steps={steps}", *SMALL) for word in ("--set", one)), *more]


def manifest(run: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    return data


def test_an_empty_folder_is_enough_and_a_run_resumes_after_the_package_was_moved(folder):
    here = [train("arithmetic", 1), ["init", "mine"], train("mine/config.toml", 1)]
    page = str(folder / "page.html")
    moved = [train("arithmetic", 2, "--resume"), ["report", "runs/arithmetic", "-o", page]]
    run(folder, {"here": here, "moved": moved})
    runs = folder / "empty" / "runs"
    assert {path.name for path in (folder / "empty").iterdir()} == {"runs", "mine"}
    recipe, mine = manifest(runs / "arithmetic"), manifest(runs / "mine")
    assert recipe["recipe"] == "arithmetic"
    assert (mine["config"]["reward"]["use"], mine["base"]) == ("reward.py:reward", str(folder / "empty" / "mine"))
    assert [sorted(made["inputs"]) for made in (recipe, mine)] == [["model.path"], ["model.path", "reward.use"]]
    assert not [
        made for made in (recipe, mine) for place in ("here", "moved") if str(folder / place) in json.dumps(made)
    ]
    assert (runs / "arithmetic" / "checkpoints" / "step-000002").is_dir()
    assert [change["key"] for change in recipe["changes"]] == ["steps"]
    assert "uPlot" in Path(page).read_text(encoding="utf-8")
