"""scripts/closure.py: the modules that a module imports in the end, of a small package written here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import closure  # noqa: E402

FILES = {
    "house/__init__.py": "from house import garage\n",
    "house/words.py": "",
    "house/door.py": "import house.words\n",
    "house/garage.py": "import os\n",
    "house/rooms/__init__.py": "from house.rooms import lamp\n",
    "house/rooms/lamp.py": "x = 1\ny = 2\n",
    "house/rooms/kitchen.py": "def cook():\n    from house.door import knock\n",
    "house/rooms/hall.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.rooms import kitchen\n",
}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return closure.modules(tmp_path / "house")


def test_modules_have_dotted_names(files: dict[str, Path]) -> None:
    assert set(files) == {
        *("house", "house.words", "house.door", "house.garage"),
        *("house.rooms", "house.rooms.lamp", "house.rooms.kitchen", "house.rooms.hall"),
    }


def test_imports_in_functions_and_for_type_checkers_and_packages_above_count(files: dict[str, Path]) -> None:
    graph = closure.import_graph(files)
    assert graph["house.rooms.hall"] == {"house.rooms.kitchen", "house.rooms"}
    assert graph["house.rooms.kitchen"] == {"house.door"}
    inner = {"house.rooms", "house.rooms.lamp", "house.rooms.kitchen", "house.door", "house.words"}
    assert closure.closure(graph, "house.rooms.hall") == {"house.rooms.hall", *inner}  # not the outermost, nor its own


def test_an_import_brings_what_no_other_brings(files: dict[str, Path]) -> None:
    alone = closure.brought_alone(closure.import_graph(files), "house.rooms.hall")
    assert alone["house.rooms.hall", "house.rooms.kitchen"] == {"house.rooms.kitchen", "house.door", "house.words"}
    assert alone["house.rooms", "house.rooms.lamp"] == {"house.rooms.lamp"}
    assert ("house.rooms.hall", "house.rooms") not in alone  # its own package counts in any case


def test_lines_are_of_files(files: dict[str, Path]) -> None:
    assert closure.lines([files["house.rooms.lamp"], files["house.door"]]) == 3
