"""docs/reference.md is what the code says: a key, member or metric that it lacks fails here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from winnow.commands import config_keys as module
from winnow.commands.catalog import catalog
from winnow.commands.config_keys import Key, keys
from winnow.commands.run_settings import toml
from winnow.config import Config

REPOSITORY = Path(__file__).parents[3]


def test_the_page_is_what_the_code_says(tmp_path):
    """In another process: other tests register members of their own."""
    made, committed = tmp_path / "reference.md", REPOSITORY / "docs" / "reference.md"
    script = [sys.executable, REPOSITORY / "scripts" / "reference.py", made]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run(script, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    same = made.read_text(encoding="utf-8") == committed.read_text(encoding="utf-8")
    assert same, "docs/reference.md is not what the code says: run `python scripts/reference.py`, and commit the page"


def test_every_row_of_a_table_is_one_line():
    """Of a row of two lines a reader of Markdown makes two rows, the second without a key."""
    assert {
        len(text.splitlines()) for key in keys() for text in (key.name, key.type, key.default or " ", key.meaning)
    } == {1}
    page = (REPOSITORY / "docs" / "reference.md").read_text(encoding="utf-8")
    tables = [block for block in re.split(r"\n\s*\n", page) if block.startswith("| ")]
    assert len(tables) == 2
    assert [line for table in tables for line in table.splitlines() if not re.fullmatch(r"\|.*\|", line)] == []


def test_every_key_that_a_configuration_prints_is_there():
    printed = {line.partition(" = ")[0] for line in toml(Config.model_validate({"model": {"lora": {}}})).splitlines()}
    known = {key.name for key in keys()} | {f"{key.name}.use" for key in keys() if key.type == "member"}
    assert printed <= known


@pytest.mark.parametrize(
    "key",
    [
        Key(
            name="rollout.top_p",
            type="number > 0, <= 1",
            default="1.0",
            meaning="Sample from the smallest set of tokens with this probability; stays 1, as a cut would bias every "
            "ratio.",
        ),
        Key(
            name="model.lora.targets",
            type='list of text or "all-linear"',
            default='"all-linear"',
            meaning='Names of the linear layers that get an adapter, or "all-linear".',
        ),
        Key(
            name="optimizer.betas",
            type="[number >= 0, < 1, number >= 0, < 1]",
            default="[0.9, 0.95]",
            meaning="Decay of AdamW's first and second moment.",
        ),
        Key(
            name="terms[].coefficient",
            type="number",
            default="",
            meaning="Multiplies this term, which is added to the loss.",
        ),
        Key(name="task", type="member", default='"arithmetic"', meaning="Where problems come from."),
    ],
    ids=lambda key: key.name,
)
def test_a_key_has_type_default_and_meaning(key):
    assert key in list(keys())


def test_a_key_without_a_meaning_is_refused_with_the_place_to_write_it(monkeypatch):
    class Silent(Config):
        patience: int = 3

    monkeypatch.setattr(module, "Config", Silent)
    with pytest.raises(
        ValueError, match=r"patience has no meaning: write it in winnow/config\.py, as a docstring under"
    ):
        list(keys())


def test_keys_are_listed_at_the_command_line():
    blocks = list(catalog("keys"))
    assert next(b for b in blocks if b.startswith("evaluate.every = 0\n"))
    assert next(b for b in blocks if b.startswith("terms[].coefficient")).startswith("terms[].coefficient\n")


def test_what_a_member_does_is_said_to_the_end_of_its_sentence():
    cut = [block for kind in ("rewards", "weightings", "terms") for block in catalog(kind) if block[-1] not in ".)"]
    assert cut == []
