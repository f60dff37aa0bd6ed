"""What other programs call our keys: every name leads to a key that exists, and to the one that the pages name."""

from __future__ import annotations

import re
from pathlib import Path

from winnow.commands.list import keys
from winnow.config_keys import OTHER_NAMES, own_name
from winnow.registry import members

DOCS = Path(__file__).parents[2] / "docs"
OPTIONS = {
    f"{table}.{option}"
    for table, family in (("loss", "loss"), ("advantage", "advantage"), ("task", "task"), ("rollout.engine", "engine"))
    for entry in members(family).values()
    for option in entry.options
}
KEYS = {key.name for key in keys()} | OPTIONS | {"reward.parts", "model.lora"}


def of_pages():
    """{the other program's name: our names} of every row of a table that begins with such a name."""
    found = {}
    for page in ("from-trl.md", "from-verl.md"):
        for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
            cells = [re.findall("`(.*?)`", cell) for cell in line.split("|")]
            if line.startswith("| `") and len(cells) >= 5:
                for name in cells[1]:
                    found.setdefault(name.partition("=")[0], []).extend(cells[3] or cells[2])  # of all its rows
    return found


def test_every_name_leads_to_a_key_that_exists_and_is_none_itself():
    assert set(OTHER_NAMES.values()) <= KEYS
    assert not {name for name in OTHER_NAMES if name in KEYS}


def test_names_lead_where_the_pages_about_other_programs_lead():
    pages = of_pages()
    shared = [name for name in OTHER_NAMES if pages.get(name)]
    assert len(shared) > 70
    wrong = {
        name: pages[name]
        for name in shared
        if not any(own_name(name) in (here, here.replace("[]", ""), here.partition("[]")[0]) for here in pages[name])
    }
    assert not wrong
