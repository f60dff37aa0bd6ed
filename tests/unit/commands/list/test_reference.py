"""docs/reference.md is generated from the code: a key, member or metric that it lacks fails here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import forked
from winnow.commands.list import catalog as module
from winnow.commands.list.catalog import catalog
from winnow.config import Config
from winnow.config_keys import format_toml, keys

REPOSITORY = Path(__file__).parents[4]


def test_the_page_is_the_generated_one(tmp_path):
    """In another process, as other tests register members here."""
    made, committed = tmp_path / "reference.md", REPOSITORY / "docs" / "reference.md"
    done = forked.python(REPOSITORY / "scripts" / "reference.py", made)
    assert done.returncode == 0, done.stderr
    same = made.read_text(encoding="utf-8") == committed.read_text(encoding="utf-8")
    assert same, "docs/reference.md differs from the code: run `python scripts/reference.py`, and commit the page"


def test_every_row_of_a_table_is_one_line():
    """Markdown reads a row of two lines as two rows, the second without a key."""
    assert {
        len(text.splitlines()) for key in keys() for text in (key.name, key.type, key.default or " ", key.meaning)
    } == {1}
    page = (REPOSITORY / "docs" / "reference.md").read_text(encoding="utf-8")
    tables = [block for block in re.split(r"\n\s*\n", page) if block.startswith("| ")]
    assert len(tables) == 2
    assert [line for table in tables for line in table.splitlines() if not re.fullmatch(r"\|.*\|", line)] == []


def test_every_key_that_a_configuration_prints_is_listed():
    printed = {
        line.partition(" = ")[0] for line in format_toml(Config.model_validate({"model": {"lora": {}}})).splitlines()
    }
    known = {key.name for key in keys()} | {f"{key.name}.use" for key in keys() if key.type == "member"}
    assert printed <= known


TYPES_AND_DEFAULTS = {
    "rollout.top_p": ("number > 0, <= 1", "1.0"),
    "model.lora.targets": ('list of text or "all-linear"', '"all-linear"'),
    "optimizer.betas": ("[number >= 0, < 1, number >= 0, < 1]", "[0.9, 0.95]"),
    "terms[].coefficient": ("number", ""),
    "task": ("member", '"arithmetic"'),
    "critic.form": ('"shared" or "adapter" or "model"', '"model"'),
    "critic.epochs": ("integer > 0", "1"),
    "critic.coefficient": ("number > 0", "0.5"),
}


def test_a_key_has_type_default_and_meaning():
    listed = {key.name: key for key in keys()}
    assert {name: (listed[name].type, listed[name].default) for name in TYPES_AND_DEFAULTS} == TYPES_AND_DEFAULTS
    assert not [key.name for key in listed.values() if not key.meaning]


def test_a_key_without_a_docstring_is_refused(monkeypatch):
    class Undocumented(Config):
        patience: int = 3

    monkeypatch.setattr(module, "Config", Undocumented)
    with pytest.raises(ValueError, match="patience"):
        list(keys())


def test_keys_are_listed_at_the_command_line():
    blocks = list(catalog("keys"))
    assert next(b for b in blocks if b.startswith("evaluate.every = 0\n"))
    assert next(b for b in blocks if b.startswith("terms[].coefficient")).startswith("terms[].coefficient\n")


def test_descriptions_of_members_are_whole_sentences():
    cut = [block for kind in ("rewards", "weightings", "terms") for block in catalog(kind) if block[-1] not in ".)"]
    assert cut == []
