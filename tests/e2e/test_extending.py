"""docs/extending.md is part of the program: its examples run, and the table of traits is made from the code."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import forked
from chat_templates import render_here
from winnow.commands import app
from winnow.families import FAMILIES, Traits
from winnow.registry import resolve
from winnow.testing import check_member

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / "docs" / "extending.md").read_text(encoding="utf-8")
PAGE = TEXT.partition("\n## In a file\n")[2]  # test_readme.py runs what is above
BLOCKS = {name: text for name, text in re.findall(r"```\w+\n# (\S+)\n(.*?)```", PAGE, flags=re.DOTALL)}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file of the page."""
    folder = tmp_path_factory.mktemp("extending")
    for name, text in BLOCKS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def folder(files: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, where a test runs."""
    monkeypatch.chdir(files)
    return files


def test_every_example_is_a_file_that_a_test_knows():
    assert set(BLOCKS) == {"mine.py", "mine.toml", "pyproject.toml", "mypkg/members.py", "test_mine.py"}
    assert PAGE.count("```") == 2 * len(BLOCKS)


def test_one_file_trains_as_a_script(folder):
    done = forked.python(folder / "mine.py")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"tracked (\d) 0\.\d+", done.stdout) == ["0"]


def test_a_configuration_names_the_same_functions_by_the_file(folder, monkeypatch):
    render_here(monkeypatch)
    here = ("threads=1", "device=cpu", "task.size=64")
    here += ("verify.workers=0",)  # a worker would import torch, as the file does
    result = CliRunner().invoke(app, ["train", "mine.toml", *(part for key in here for part in ("--set", key))])
    assert result.exit_code == 0, (result.output, result.exception)
    config = json.loads((folder / "runs" / "by-file" / "manifest.json").read_text())["config"]
    assert config["loss"]["use"] == "mine.py:plain"
    assert resolve("loss", "mine.py:plain").traits.policy_gradient is True


def test_the_package_is_one_that_registers_its_members(folder):
    """tests/e2e/test_installed_package.py installs one and runs with it."""
    project = tomllib.loads(BLOCKS["pyproject.toml"])["project"]
    ((name, module),) = project["entry-points"]["winnow"].items()
    assert module.replace(".", "/") + ".py" in BLOCKS
    assert importlib.metadata.EntryPoint(name, module, "winnow").module.partition(".")[0] == project["name"]
    spec = importlib.util.spec_from_file_location("extending_members", folder / "mypkg" / "members.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert resolve("selector", "half").traits.size == "varies"
    check_member(resolve("selector", "half"))


def test_the_check_of_ones_own_members_passes(folder):
    names: dict[str, object] = {}
    exec(BLOCKS["test_mine.py"], names)
    names["test_mine"]()  # type: ignore[operator]


def test_every_trait_is_in_the_table_with_its_default():
    page = (REPOSITORY / "docs" / "reference.md").read_text(encoding="utf-8").partition("\n## Traits\n")[2]
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \| (.+?) \| (.*?) \|$", page.partition("\n## ")[0], flags=re.MULTILINE)
    said = {(family, trait): default.strip('`"') for family, trait, default, _ in rows}
    assert [trait for _, trait, _, meaning in rows if not meaning.endswith(".")] == []
    common = {field.name for field in dataclasses.fields(Traits)}
    actual = {
        ("any" if field.name in common else family.name, field.name): default_of(field)
        for family in FAMILIES.values()
        for field in dataclasses.fields(family.traits)
    }
    assert said == actual


def default_of(field: dataclasses.Field) -> str:
    value = field.default_factory() if field.default is dataclasses.MISSING else field.default
    return {"None": "none", "False": "false", "True": "true"}.get(str(value), str(value))
