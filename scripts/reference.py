#!/usr/bin/env python
"""Write docs/reference.md from the code: keys, members with their options and traits, metrics, alarms, codes of errors,
and the units of the grader. Write docs/objects.md: the records and functions of Python.

python scripts/reference.py           # or another file to write, docs/reference.md alone
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import objects_page

from winnow.alarms.rules import ALARMS
from winnow.commands.list import catalog
from winnow.config import AlarmsSection
from winnow.config_keys import keys
from winnow.errors import CODES
from winnow.families import FAMILIES, Traits
from winnow.metrics import METRICS
from winnow.rewards.math_equivalence import unit_names, unit_words

BAR = r"\|"  # a bar inside a cell
PAGE = Path(__file__).parents[1] / "docs" / "reference.md"

OPENING = """# Reference: keys, members, metrics, alarms, errors

This page lists every configuration key, every member with its options and traits, every metric, every alarm and every
code of an error. At its end are the units of the grader `math`. It is generated from the code by
`python scripts/reference.py`; do not edit it.

## Configuration keys

Keys have the same names in a TOML file (`[rollout] top_k = 0`) and in `--set` (`--set rollout.top_k=0`). In Python
they are nested keyword arguments. A *member* is a name, `"file.py:function"`, or a table with `use` and the options of
the member. A key without a default is absent unless you set it. `winnow check CONFIG --all` prints all keys.
"""
MEMBERS = """
## Members and their options

An option is set next to `use`: `select = { use = "max_variance", keep_per_prompt = 4 }`. `winnow list losses` prints
the losses in the same form, and so on for the other families."""
TRAITS = """
## Traits

A member declares traits as keyword arguments of `winnow.register` ([extending.md](extending.md)). A function without a
registration has the defaults. winnow refuses an unknown trait, and suggests the nearest one.
"""
MEASURED = """
## Metrics

These are the columns of `metrics.jsonl`, which has one row per step. Means over rollouts are over all verified
rollouts unless the description contains "kept".
"""
RAISED = """
## Alarms

[watching.md](watching.md) describes when an alarm is raised. The limits are keys of the table `[alarms]`.
"""
REFUSED = """
## Codes of errors

A command prints the code of an error before its message, and the message ends with a remedy. In Python it is the
attribute `code` of the exception. Codes stay the same across releases, and the words of a message may change. A code
without a second part, such as `config`, is from a package that extends winnow.
"""
MEASURES = """
## Units of the grader `math`

[verifiers.md](verifiers.md#units) describes how units are compared. The list is made from the names of pint, and from
lists of winnow. winnow does not import pint, so its version changes no verdict.
"""


def page() -> str:
    """The whole text of docs/reference.md."""
    parts = (
        *(OPENING, *_keys(), MEMBERS, *_members(), TRAITS, *_traits(), MEASURED, *_metrics()),
        *(RAISED, *_alarms(), REFUSED, *_codes(), MEASURES, *_units()),
    )
    return "\n".join(parts)


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


def _traits() -> Iterator[str]:
    rows = [("any", *each) for each in _declared(Traits)]
    common = {name for _, name, *_ in rows}
    for family in FAMILIES.values():
        rows += [(family.name, *each) for each in _declared(family.traits) if each[0] not in common]
    yield from _table(("family", "trait", "default", "meaning"), rows)


def _declared(traits: type[Traits]) -> Iterator[tuple[str, str, str]]:
    """Name, default and meaning of each trait; the meaning is the text under it, which only its own class has."""
    body = ast.parse(inspect.getsource(traits)).body[0].body  # type: ignore[attr-defined]
    meanings = {
        field.target.id: " ".join(text.value.value.split())
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
    }
    for field in dataclasses.fields(traits):
        yield f"`{field.name}`", _default(field), meanings.get(field.name, "")


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default_factory() if callable(field.default_factory) else field.default
    if value is None or isinstance(value, bool):
        return {None: "none", False: "false", True: "true"}[value]
    return f'"{value}"' if isinstance(value, str) else f"`{value}`"


def _alarms() -> Iterator[str]:
    default = AlarmsSection().model_dump()
    rows = (
        (
            *(f"`{kind.name}`", kind.meaning, _coded(kind.reads), kind.cause, _coded(kind.keys)),
            ", ".join(f"`{limit}` {default[limit]:g}" for limit in kind.limits) or "none",
        )
        for kind in ALARMS
    )
    yield from _table(("alarm", "symptom", "evidence", "likely cause", "what to change", "limits"), rows)


def _codes() -> Iterator[str]:
    yield from _table(("code", "meaning"), ((f"`{code}`", meaning) for code, meaning in CODES.items() if "." in code))


def _units() -> Iterator[str]:
    parts = {
        "Units of pint, each with its other spellings:": " ".join(unit_names.UNITS.split()),
        "These take the prefixes, as names and as symbols:": " ".join(unit_names.PREFIXED.split()),
        "Prefixes:": " ".join(unit_names.PREFIXES.split()),
        "Measures of winnow's own lists:": " ".join(unit_words.MORE.split()),
        "Money:": " ".join(unit_words.MONEY.split()),
        "Counted nouns, in the singular:": " ".join(unit_words.NOUNS.split()),
        "Of one or two letters, these alone are units without `\\text`:": " ".join(sorted(unit_words.BARE)),
    }
    for title, words in parts.items():
        yield from (title, "", "```text", textwrap.fill(words, 116), "```", "")


def _coded(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield from (_row(heads), "|---" * len(heads) + "|")
    yield from map(_row, rows)


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |"


if __name__ == "__main__":
    Path(*sys.argv[1:] or [PAGE]).write_text(page(), encoding="utf-8")
    if not sys.argv[1:]:
        PAGE.with_name("objects.md").write_text(objects_page.page(), encoding="utf-8")
