"""docs/from-trl.md names every setting of the release, with its default there if winnow has a counterpart."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest
import trl
from transformers import TrainingArguments

from winnow.installed import version_of
from winnow_trl.release import TRL

PAGE = (Path(__file__).parents[2] / "docs" / "from-trl.md").read_text(encoding="utf-8")
FIELDS = {field.name: field.default for field in dataclasses.fields(trl.GRPOConfig)}
OWN = sorted(FIELDS.keys() - {field.name for field in dataclasses.fields(TrainingArguments)})
WORDS = {"on": True, "off": False, "none": None, "all": None, "the same": None}
pytestmark = pytest.mark.skipif(version_of("trl") != TRL.tested, reason=f"the page has the settings of {TRL.tested}")


def is_named(name):
    return re.search(rf"(?<![\w.]){name}(?!\w)", PAGE) is not None


def test_every_setting_is_named():
    assert len(OWN) > 70
    assert [name for name in OWN if not is_named(name)] == []
    arguments = inspect.signature(trl.GRPOTrainer).parameters
    assert [name for name in arguments if name not in ("model", "args") and not is_named(name)] == []


def defaults():
    """(setting, its default on the page) for each row of the table with a default for each of its settings."""
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = re.findall(r"`(\w+)`", cells[0])
        values = re.sub(r"\(.*?\)|:.*|;.*", "", cells[1]).split(",") if len(cells) == 5 else []
        if names and len(names) == len(values):
            yield from zip(names, map(str.strip, values), strict=True)


def test_the_default_there_is_the_default():
    found = [(name, text) for name, text in defaults() if name in FIELDS and text]
    assert len(found) > 45
    assert [(name, text, FIELDS[name]) for name, text in found if not is_default(FIELDS[name], text)] == []


def is_default(default, text):
    """Whether a cell has a default: "off" is False or None."""
    if text == "off":
        return default in (False, None)
    if isinstance(default, float):
        return float(text) == default
    return repr(default) == repr(WORDS[text]) if text in WORDS else str(default) == text.strip('"')
