"""The trees of packages in README.md and docs/design.md are those that scripts/trees.py makes from the docstrings."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("trees", REPOSITORY / "scripts" / "trees.py")
trees = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(trees)


def test_the_pages_have_the_current_trees():
    outdated = [path.name for path, text in trees.pages().items() if path.read_text(encoding="utf-8") != text]
    assert outdated == [], "run python scripts/trees.py"


def test_the_trees_contain_every_package_and_top_level_file():
    named = {name for floor in trees.FLOORS.values() for name in floor}
    packages = {path.parent.name for path in trees.SOURCE.glob("*/__init__.py")}
    assert named == packages | {path.name for path in trees.SOURCE.glob("*.py")}
    design = "\n".join(trees.floors())
    assert [path for path in trees.SOURCE.rglob("__init__.py") if f"{path.parent.name}/" not in design] == []
    assert [path for path in trees.LAB.glob("*.py") if path.name not in design and path.name != "__init__.py"] == []
    assert [path for path in trees.LAB.glob("*/__init__.py") if f"{path.parent.name}/" not in design] == []
    readme = "\n".join(trees.packages())
    assert all(f"src/{path.name}/" in readme for path in trees.SOURCE.parent.iterdir() if path.is_dir())


def test_no_line_of_a_tree_is_longer_than_120_columns():
    assert [line for line in [*trees.packages(), *trees.floors()] if len(line) > 120] == []


def test_a_description_is_the_first_sentence_of_a_docstring(tmp_path):
    file = tmp_path / "one.py"
    file.write_text('"""Samples rollouts, in\nblocks. Importing it does nothing.\n\nMore.\n"""\n')
    assert trees.describe(file) == "Samples rollouts, in blocks"
    file.write_text("x = 1\n")
    with pytest.raises(ValueError, match=r"one\.py"):
        trees.describe(file)


def test_a_page_without_marks_is_refused():
    text = f"above\n{trees.BEGIN}\nold\n{trees.END}\nbelow\n"
    assert trees.page(text, ["new"]) == f"above\n{trees.BEGIN}\n\nnew\n\n{trees.END}\nbelow\n"
    with pytest.raises(ValueError, match="unpack"):
        trees.page("above\nbelow\n", ["new"])
