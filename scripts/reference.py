#!/usr/bin/env python
"""Write docs/reference.md (every configuration key, member, option and metric) and docs/objects.md (the records and
functions of Python) from the code.

python scripts/reference.py           # or another file to write, docs/reference.md alone
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import objects_page

from winnow.commands.list import catalog
from winnow.config_keys import keys
from winnow.families import FAMILIES
from winnow.metrics import METRICS

BAR = r"\|"  # a bar inside a cell
PAGE = Path(__file__).parents[1] / "docs" / "reference.md"

OPENING = """# Reference: keys, members, metrics

This page lists every configuration key, every member with its options, and every metric. It is generated from the
code by `python scripts/reference.py`; do not edit it.

## Configuration keys

Keys have the same names in a TOML file (`[rollout] top_k = 0`) and in `--set` (`--set rollout.top_k=0`). In Python
they are nested keyword arguments. A *member* is a name, `"file.py:function"`, or a table with `use` and the options of
the member. A key without a default is absent unless you set it. `winnow check CONFIG --all` prints all keys.
"""
MEMBERS = """
## Members and their options

An option is set next to `use`: `select = { use = "max_variance", keep_per_prompt = 4 }`. `winnow list losses` prints
the losses in the same form, and so on for the other families."""
MEASURED = """
## Metrics

These are the columns of `metrics.jsonl`, which has one row per step. Means over rollouts are over all verified
rollouts unless the description contains "kept".
"""


def page() -> str:
    """The whole text of docs/reference.md."""
    return "\n".join([OPENING, *_keys(), MEMBERS, *_members(), MEASURED, *_metrics(), ""])


def _keys() -> Iterator[str]:
    yield from _table(
        ("key", "type", "default", "meaning"),
        ((f"`{k.name}`", k.type, f"`{k.default}`" if k.default else "", k.meaning) for k in keys()),
    )


def _members() -> Iterator[str]:
    for family in FAMILIES:
        yield from (f"\n### {family}\n", "```")
        yield from catalog(family, own=True)  # without members of packages that are installed here
        yield "```"


def _metrics() -> Iterator[str]:
    yield from _table(("metric", "meaning"), ((f"`{name}`", meaning) for name, meaning in METRICS.items()))


def _table(heads: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield from (_row(heads), "|---" * len(heads) + "|")
    yield from map(_row, rows)


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |"


if __name__ == "__main__":
    Path(*sys.argv[1:] or [PAGE]).write_text(page(), encoding="utf-8")
    if not sys.argv[1:]:
        PAGE.with_name("objects.md").write_text(objects_page.page(), encoding="utf-8")
