"""The wheel has what a new user needs: in an empty folder it trains a recipe, and a configuration that it wrote itself.

Two interpreters see the installed package alone, the second one after the package was moved.
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
)  # fmt: skip
SCRIPT = """
import json, sys
from typer.testing import CliRunner
import winnow
from winnow.cli import app

for call in json.loads(sys.argv[1]):
    result = CliRunner().invoke(app, call)
    assert result.exit_code == 0, (call, result.output, result.exception)
print(winnow.__file__)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed package, an empty working directory and an unchanged copy of nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "empty").mkdir()
    build = ["hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run([sys.executable, "-m", *build], cwd=REPOSITORY, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    install = [
        "pip",
        "install",
        "--no-index",
        "--no-deps",
        "--no-compile",
        "--target",
        str(folder / "site"),
        str(wheel),
    ]
    subprocess.run([sys.executable, "-m", *install], check=True, capture_output=True)
    return folder


def run(folder: Path, site: str, *calls: list[str]) -> None:
    """Commands in one interpreter, which imports winnow from `site`."""
    environment = {**os.environ, "PYTHONPATH": str(folder / site), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", SCRIPT, json.dumps(calls)]
    done = subprocess.run(command, cwd=folder / "empty", env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.splitlines()[-1]).is_relative_to(folder / site)


def train(config: str, steps: int, *more: str) -> list[str]:
    return ["train", config, *(word for one in (f"steps={steps}", *SMALL) for word in ("--set", one)), *more]


def manifest(run: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    return data


def test_an_empty_folder_is_enough(folder):
    run(folder, "site", train("arithmetic", 1), ["init", "mine"], train("mine/config.toml", 1))
    runs = folder / "empty" / "runs"
    assert {path.name for path in (folder / "empty").iterdir()} == {"runs", "mine"}
    recipe, mine = manifest(runs / "arithmetic"), manifest(runs / "mine")
    assert recipe["recipe"] == "arithmetic"
    assert (mine["config"]["reward"]["use"], mine["base"]) == ("reward.py:reward", str(folder / "empty" / "mine"))
    assert [sorted(made["inputs"]) for made in (recipe, mine)] == [["model.path"], ["model.path", "reward.use"]]
    assert not [made for made in (recipe, mine) if str(folder / "site") in json.dumps(made)]

    (folder / "site").rename(folder / "moved")
    run(folder, "moved", train("arithmetic", 2, "--resume"))
    assert (runs / "arithmetic" / "checkpoints" / "step-000002").is_dir()
    assert [change["key"] for change in manifest(runs / "arithmetic")["changes"]] == ["steps"]
