#!/usr/bin/env python
"""Write the trees of packages in README.md and docs/design.md, from the docstrings of the packages and files.

python scripts/trees.py

Each tree is between the lines BEGIN and END of its page. A description is the first sentence of a docstring.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
SOURCE = REPOSITORY / "src" / "winnow"
LAB = SOURCE.parent / "winnow_lab"
BESIDE = sorted(path.parent for path in SOURCE.parent.glob("winnow_*/__init__.py"))  # which winnow does not import
BEGIN, END = "<!-- tree: python scripts/trees.py -->", "<!-- end of the tree -->"
WIDTH = 120  # columns
# Floors from the lowest to the highest: a file imports only from lower ones. tests/unit/test_laws.py checks it.
FLOORS: dict[str, tuple[str, ...]] = {
    "base": (
        "records.py", "families.py", "registry.py", "bounds.py", "options.py", "user_code.py", "other_names.py",
        "config.py", "config_file.py", "config_keys.py", "recipes", "seeds.py", "errors.py", "installed.py",
        "background.py", "control_groups.py", "ranks.py", "metrics.py", "version.py",
    ),
    "budget": ("budget",),
    "algorithms": ("algos", "rewards"),
    "models": ("environments", "models"),
    "memory": ("memory",),
    "components": ("tasks", "engines", "verify", "learner", "alarms", "state"),
    "core": ("core", "view"),
    "training": ("training",),
    "evaluation": ("evaluation", "run_view"),
    "trackers": ("trackers",),
    "commands": ("commands",),
    "interfaces": ("__init__.py", "__main__.py", "testing.py"),
}  # fmt: skip


def page(text: str, tree: list[str]) -> str:
    """The page with this tree between its marks. Raises ValueError if a mark is missing or repeated."""
    above, rest = text.split(f"{BEGIN}\n")
    _, below = rest.split(f"{END}\n")
    return "\n".join([above + BEGIN, "", *tree, "", END, below])


def pages() -> dict[Path, str]:
    """path -> the page with its current tree."""
    trees = {REPOSITORY / "README.md": packages(), REPOSITORY / "docs" / "design.md": floors()}
    return {path: page(path.read_text(encoding="utf-8"), tree) for path, tree in trees.items()}


def packages() -> list[str]:
    """The lines of README.md: the core, which is read first, every other package, from the lowest floor to the highest,
    and the packages beside winnow.
    """
    names = [name for floor in FLOORS.values() for name in floor if not name.endswith(".py")]
    names.sort(key=lambda name: name != "core")
    return [
        "    src/winnow/",
        *(line for name in names for line in _lines(f"      {name}/", describe(SOURCE / name), 20)),
        *(line for path in BESIDE for line in _lines(f"    src/{path.name}/", describe(path), 24)),
    ]


def floors() -> list[str]:
    """The lines of docs/design.md: every floor, with its packages, their packages, and its files; then the laboratory's
    packages and files.
    """
    lines = ["    src/winnow/"]
    for number, (floor, names) in enumerate(FLOORS.items()):
        start = f"{number} {floor}"
        for name in names:
            for depth, path in _packages(SOURCE / name):
                label = "  " * depth + path.name + "/" * path.is_dir()
                lines += _lines(f"      {start:<14}{label}", describe(path), 42)
                start = ""
    lines.append("    src/winnow_lab/")
    for path in sorted(LAB.iterdir()):
        if (path / "__init__.py").exists() or (path.suffix == ".py" and path.name != "__init__.py"):
            lines += _lines(f"{'':<20}{path.name}{'/' * path.is_dir()}", describe(path), 42)
    return lines


def describe(path: Path) -> str:
    """The first sentence of a docstring, of a package or a file. Raises ValueError if there is none."""
    source = path / "__init__.py" if path.is_dir() else path
    text = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8")))
    if not text:
        raise ValueError(f"{source} has no docstring; write one, whose first sentence describes it")
    sentence = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?]) (?=[A-Z])", sentence)[0].rstrip(".:")


def _packages(path: Path) -> Iterator[tuple[int, Path]]:
    """A package or file with its depth, then the packages in it."""
    yield 0, path
    if path.is_dir():
        yield from ((1, below.parent) for below in sorted(path.glob("*/__init__.py")))


def _lines(start: str, description: str, column: int) -> list[str]:
    """The start of a line, and its description from a column on, wrapped."""
    return textwrap.wrap(
        description,
        WIDTH,
        initial_indent=f"{start:<{column}}" if len(start) < column else f"{start} ",
        subsequent_indent=" " * column,
        break_on_hyphens=False,
    )


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
