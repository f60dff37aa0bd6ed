"""A run of a recipe: its manifest, its resume, and the same from Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import winnow
from refusals import refused
from winnow.errors import ConfigError
from winnow.recipes import FOLDER
from winnow.state.saved_runs import read_manifest

SMALL = {
    "device": "cpu",
    "threads": 1,
    "rollout": {"prompts_per_step": 2, "rollouts_per_prompt": 4, "max_new_tokens": 4},
    "select": {"use": "max_variance", "keep_per_prompt": 2},
    "task": {"size": 64},
    "evaluate": {"problems": 2, "rollouts_per_prompt": 2, "greedy": False},
    "verify": {"workers": 0},
    "progress": False,
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def manifest(run):
    return json.loads((run / "manifest.json").read_text(encoding="utf-8"))


def test_the_manifest_names_the_recipe_and_no_path_of_the_package(here):
    run = here / "runs" / "arithmetic"
    winnow.train("arithmetic", steps=1, **SMALL)
    assert manifest(run)["recipe"] == "arithmetic"
    assert "base" not in manifest(run)
    assert str(FOLDER.parent) not in json.dumps(manifest(run))
    config = manifest(run)["config"]
    assert (config["steps"], config["optimizer"]["eps"], config["task"]["levels"]) == (1, 1e-3, [2, 3, 4])
    assert (read_manifest(run).recipe, read_manifest(run).base) == ("arithmetic", FOLDER)

    winnow.resume(run, steps=2, **{"progress": False})
    winnow.train("arithmetic", steps=3, resume=True, **SMALL)
    assert manifest(run)["recipe"] == "arithmetic"
    assert [change["key"] for change in manifest(run)["changes"]] == ["steps", "steps"]

    few = {"task": {"size": 64}, "rollout": {"max_new_tokens": 4}, "verify": {"workers": 0}}
    evaluated = winnow.evaluate("bundled", config="arithmetic", problems=2, rollouts_per_prompt=1, greedy=False, **few)
    assert {row["prompt_id"].partition("-")[0] for row in evaluated.rows} == {"arithmetic"}
    assert len(evaluated.rows) == 2


def test_a_file_from_python_is_a_path_and_names_no_recipe(here):
    (here / "mine.py").write_text("def paid(prompt, rollout):\n    return float(len(rollout.text))\n")
    text = (FOLDER / "arithmetic.toml").read_text().replace('"r1_zero"', '"mine.py:paid"')
    (here / "folder").mkdir()
    (here / "mine.py").rename(here / "folder" / "mine.py")
    (here / "folder" / "arithmetic.toml").write_text(text)
    result = winnow.train("folder/arithmetic.toml", steps=1, output="out", **SMALL)
    assert "recipe" not in manifest(result.folder)
    assert manifest(result.folder)["base"] == str(here / "folder")


def test_a_bare_word_from_python_follows_the_rule_of_the_command_line(here):
    with refused(ConfigError, "'arithmetic'", code="config.unknown_name"):
        winnow.train("arithmetik")
    with refused(ConfigError, "'gsm8k'", code="config.unknown_name"):
        winnow.evaluate("bundled", config="gsm9k")
    (here / "arithmetic").mkdir()
    with refused(ConfigError, "'./arithmetic'", code="config.duplicate"):
        winnow.train("arithmetic")
    with refused(ConfigError, code="config.unreadable"):
        winnow.train(Path("arithmetic"))


def test_a_mistake_from_python_is_named_without_a_line_of_the_file():
    with refused(ConfigError, "arithmetic.toml", key="steps", code="config.value") as caught:
        winnow.train("arithmetic", steps="many")
    assert "line" not in caught.value.problem
