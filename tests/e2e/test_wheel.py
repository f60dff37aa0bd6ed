"""The wheel has what a new user needs: in an empty folder it trains a recipe, and a configuration that it wrote itself.

One process, a fork, has winnow from the installed package alone, and has it again after the package was moved. The
laboratory's commands are those of the wheel's entry points.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import forked

pytest.importorskip("hatchling", reason="it builds the wheel: pip install 'winnow-rl[test]'")

REPOSITORY = Path(__file__).parents[2]
SMALL = (
    "device=cpu", "threads=1", "rollout.prompts_per_step=2", "rollout.rollouts_per_prompt=4",
    "select.keep_per_prompt=2", "task.size=64", "evaluate.problems=2", "evaluate.rollouts_per_prompt=2",
    "evaluate.greedy=false", "verify.workers=0", "rollout.max_new_tokens=4",
)  # fmt: skip
# The calls of each folder in turn, to which the package is moved. winnow is imported anew. What `winnow init` says of
# sizes, after a plan that takes seconds, has a test in tests/unit/commands/init.
SCRIPT = """
import json, os, sys
from typer.testing import CliRunner

def ours():
    return [name for name in sys.modules if name.partition(".")[0] in ("winnow", "winnow_lab")]

place = os.environ["SITE"]
sys.path.insert(0, place)
for site, calls in json.loads(sys.argv[1]):
    os.rename(place, site)
    sys.path[sys.path.index(place)] = place = site
    for name in ours():
        del sys.modules[name]
    from winnow.commands import app, init
    init.sizes = lambda project: ()
    for call in calls:
        result = CliRunner().invoke(app, call)
        assert result.exit_code == 0, (call, result.output, result.exception)
    files = {name: sys.modules[name].__file__ for name in ours()}
    assert [name for name, file in files.items() if file and not file.startswith(site + os.sep)] == []
    assert "winnow.commands.command_line" in files
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed package in site/, and with an empty working directory."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "empty").mkdir()
    build = ["hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run([sys.executable, "-m", *build], cwd=REPOSITORY, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:  # what pip does with a wheel that has only packages: it takes pip a second
        assert not [name for name in packed.namelist() if ".data/" in name]
        packed.extractall(folder / "site")
    (folder / "script.py").write_text(SCRIPT)
    return folder


def run(folder: Path, calls: dict[str, list[list[str]]]) -> None:
    """Commands in one process, in the empty folder, by the folder in which the package is then."""
    site = str(folder / "site")
    places = [(str(folder / name), of_place) for name, of_place in calls.items()]
    environment = {"SITE": site, "PYTHONPATH": site, "HF_HUB_OFFLINE": "1"}
    done = forked.python(folder / "script.py", json.dumps(places), cwd=folder / "empty", env=environment)
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
