"""docs/from-trl.md and docs/from-verl.md name keys and members of winnow that exist, with the defaults that they have.

The other programs' names and defaults were read in their sources, at the commits that the pages name.
"""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from doc_pages import PAGES, blocks
from test_named_things import COMMANDS, KEYS, options_of

from winnow.commands.list import keys
from winnow.families import FAMILIES
from winnow.records import Prompt, Rollout
from winnow.registry import members

PEERS = ("docs/from-trl.md", "docs/from-verl.md")
OURS = {name for family in FAMILIES for name, entry in members(family).items() if entry.origin == "winnow"}


def tables(page):
    """The rows of every table with a column for winnow: {head: cell}."""
    for table in re.findall(r"(?m)(?:^\|.*\n)+", PAGES[page]):
        head, _, *rows = ([cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines())
        if "winnow" in head:
            yield from (dict(zip(head, row, strict=True)) for row in rows)


ROWS = {page: list(tables(page)) for page in PEERS}


@pytest.mark.parametrize("page", PEERS)
def test_what_it_became_here_exists(page):
    for row in ROWS[page]:
        named = re.findall("`([^`]+)`", row["winnow"])
        assert named or row["winnow"] == "none" or "verifier" in row["winnow"] or "process" in row["winnow"], row
        for name in named:
            if name.startswith("winnow "):
                _, command, *options = name.split()
                assert set(options) <= options_of(COMMANDS[command]), row
            elif " = " in name:  # weighting = "token", advantage = { use = "grpo" }
                assert set(re.findall('"(.*?)"', name)) <= OURS, row
                assert name.partition(" = ")[0] in KEYS, row
            else:
                assert name.split(".")[0] in ("prompt", "rollout") or name.replace("[]", "") in KEYS, row


DEFAULTS = {key.name: key.default for key in keys()}


def defaults_of(name):
    """What a key, or an option of whichever member has it, is by default; None where it is absent."""
    if name in DEFAULTS:
        return [value(DEFAULTS[name] or "none")]
    family = next(family for family in FAMILIES.values() if name.startswith(f"{family.key}."))
    option = name.removeprefix(f"{family.key}.")
    return [entry.defaults[option] for entry in members(family.name).values() if option in entry.defaults]


def value(text):
    """A cell's value, or a default, as TOML writes it; None for what is absent."""
    return None if text in ("none", "off", "[]", "{}") else json.loads(text)


@pytest.mark.parametrize("page", PEERS)
def test_the_default_here_is_the_default(page):
    for row in (row for row in ROWS[page] if row.get("default here")):
        names = re.findall("`([^`]+)`", row["winnow"])
        cells = re.findall(r"\[.*?\]|[^, ]+", row["default here"].partition(":")[0])
        off = cells == ["off"]
        for name, cell in zip(names, cells * len(names) if off else cells, strict=True):
            wanted = [None, False, 0, 1.0] if off else [value(cell)]
            assert any(default in wanted for default in defaults_of(name)), row


@pytest.mark.parametrize("page", PEERS)
def test_the_reward_of_the_page_is_a_reward(page):
    (block,) = (block for block in blocks(page) if block.language == "python")
    names: dict[str, object] = {}
    exec(block.text, names)
    (function,) = (value for name, value in names.items() if name in ("reward", "compute_score"))
    tokens = np.zeros(1, np.int64)
    prompt = Prompt(id="p", tokens=tokens, text="?", answer="42", task="t")
    rollouts = [
        Rollout(index=0, tokens=tokens, logprobs=np.zeros(1), text=text, finish="stop", version=0)
        for text in ("it is 42", "it is 41")
    ]
    assert [function(prompt, rollout) for rollout in rollouts] == [1.0, 0.0]  # type: ignore[operator]


def test_the_pages_are_read():
    assert sum(map(len, ROWS.values())) > 90
