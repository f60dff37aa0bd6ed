"""The allow-list of units: it is what the script makes of the pinned pint."""

from __future__ import annotations

import importlib
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from winnow.rewards.math_equivalence import unit_names, unit_words

ROOT = Path(__file__).parents[4]
sys.path.insert(0, str(ROOT / "scripts"))
script = importlib.import_module("unit_names")


def test_the_file_is_made_from_the_pinned_pint() -> None:
    pint = pytest.importorskip("pint")
    pinned = re.search(r"^Pint==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned is not None
    if version("pint") != pinned[1]:
        pytest.skip(f"pint {version('pint')} is installed, not {pinned[1]}")
    assert Path(str(unit_names.__file__)).read_text(encoding="utf-8") == script.text(pinned[1], pint.UnitRegistry())


def test_constants_numbers_and_small_words_are_no_units() -> None:
    words = unit_words.words()
    assert [
        word for word in ("pi", "e", "c", "k", "at", "am", "pm", "as", "or", "dozen", "ppm", "lambda") if word in words
    ] == []
    assert unit_words.lookup("in", upright=False) == {"inch": 1}


def test_single_letters_are_units_only_if_they_are_upright() -> None:
    letters = [word for word in unit_words.words() if len(word) == 1 and word.isascii()]
    assert len(letters) == 18
    assert all(unit_words.lookup(letter, upright=True) for letter in letters)
    assert not any(unit_words.lookup(letter, upright=False) for letter in letters)


def test_no_two_units_share_a_spelling() -> None:
    """Symbols with a prefix are the danger: min is no milli-inch, and pt no pico-tonne."""
    spelled = {"min": "minute", "ft": "foot", "cd": "candela", "mm": "millimeter", "mW": "milliwatt", "MW": "megawatt"}
    assert {word: "".join(unit_words.lookup(word, upright=True) or ()) for word in spelled} == spelled
    assert unit_words.lookup("Mm", upright=True) == {"megameter": 1}
    assert unit_words.lookup("mph", upright=False) == {"mile": 1, "hour": -1}
