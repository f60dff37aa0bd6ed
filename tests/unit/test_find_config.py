"""A configuration is named by a recipe or by a path, and no text names both."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from refusals import refused
from winnow.config import leaves
from winnow.errors import ConfigError
from winnow.recipes import FOLDER, find_config, recipe_at, recipe_paths, summary


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def test_a_bare_word_is_a_recipe():
    assert find_config("arithmetic") == FOLDER / "arithmetic.toml"
    assert {find_config(name) for name in recipe_paths()} == set(FOLDER.glob("*.toml"))


@pytest.mark.parametrize("name", ["./grpo", "grpo.toml", "../grpo", "a/grpo", "/a/grpo", "grpo.", ".grpo", "grpo/", ""])
def test_text_with_a_separator_or_a_dot_is_a_path(here, name):
    assert find_config(name) == Path(name)
    (here / "grpo.toml").touch()
    assert find_config(name, here) == here / name


def test_a_path_object_is_never_a_recipe():
    assert find_config(Path("grpo")) == Path("grpo")


def test_a_home_folder_is_expanded(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_config("~/grpo") == tmp_path / "grpo"


@pytest.mark.parametrize(
    "make", [Path.mkdir, Path.touch, lambda path: path.symlink_to("nowhere")], ids=["folder", "file", "broken link"]
)
def test_a_recipe_that_is_also_here_is_refused_with_both_paths(here, make):
    make(here / "grpo")
    with refused(ConfigError, "'./grpo'", repr(str(FOLDER / "grpo.toml")), code="config.duplicate"):
        find_config("grpo")
    assert find_config("./grpo") == Path("grpo")
    assert recipe_at(find_config(str(FOLDER / "grpo.toml"))) == "grpo"
    assert find_config("pods") == FOLDER / "pods.toml"


def test_the_configuration_in_a_folder_is_named(here):
    (here / "grpo").mkdir()
    (here / "grpo" / "config.toml").touch()
    with refused(ConfigError, "'./grpo/config.toml'", code="config.duplicate"):
        find_config("grpo")


def test_a_file_that_is_written_like_a_recipe_is_refused_with_its_path(here):
    (here / "mine").touch()
    with refused(ConfigError, "'./mine'", code="config.unknown_name") as caught:
        find_config("mine")
    assert "mine.toml" not in str(caught.value)


def test_an_unknown_recipe_is_refused_with_a_similar_one_and_both_ways_to_write_a_path():
    with refused(ConfigError, "'arithmetik'", "'arithmetic'", "'./arithmetik'", "'arithmetik.toml'") as caught:
        find_config("arithmetik")
    assert caught.value.code == "config.unknown_name"


def test_a_file_elsewhere_is_no_recipe(here):
    (here / "grpo.toml").write_text((FOLDER / "grpo.toml").read_text())
    assert recipe_at(here / "grpo.toml") is None
    assert recipe_at(FOLDER / "nothing.toml") is None
    assert recipe_at(FOLDER / "grpo.toml") == "grpo"


@pytest.mark.parametrize("name", recipe_paths())
def test_a_recipe_means_the_same_wherever_it_is_installed(name):
    """It names no file: only the run folder and a model of the hub contain a separator."""
    data = tomllib.loads(recipe_paths()[name].read_text(encoding="utf-8"))
    paths = {key for key, value in leaves(data) if isinstance(value, str) and ("/" in value or ".py" in value)}
    assert paths <= {("output",), ("model", "path"), ("rollout", "stop", 0)}
    assert data["output"] == f"runs/{name}"


@pytest.mark.parametrize("name", recipe_paths())
def test_the_first_line_of_a_recipe_is_a_sentence(name):
    assert recipe_paths()[name].read_text(encoding="utf-8").startswith("# ")
    assert summary(recipe_paths()[name]).endswith(".")


def test_a_function_is_no_configuration():
    with refused(ConfigError, "function", code="config.value"):
        find_config(summary)
