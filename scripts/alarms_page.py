#!/usr/bin/env python
"""Write the table of docs/alarms.md, below its heading "All alarms", from the code; the text above it stays.

python scripts/alarms_page.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from winnow.alarms.kinds import Kind
from winnow.alarms.rules import ALARMS
from winnow.config import AlarmsSection

PAGE = Path(__file__).parents[1] / "docs" / "alarms.md"
HEADING = "## All alarms\n"
HEADS = ("alarm", "symptom", "evidence", "likely cause", "what to change", "limits")


def page(text: str) -> str:
    """The page with a new table."""
    above, _ = text.split(HEADING)
    return "\n".join([above + HEADING, *_table(), ""])


def _table() -> Iterator[str]:
    yield f"| {' | '.join(HEADS)} |"
    yield "|---" * len(HEADS) + "|"
    for kind in ALARMS:
        yield f"| {' | '.join(_cells(kind))} |"


def _cells(kind: Kind) -> Iterator[str]:
    default = AlarmsSection().model_dump()
    yield f"`{kind.name}`"
    yield kind.meaning
    yield ", ".join(f"`{name}`" for name in kind.reads)
    yield kind.cause
    yield ", ".join(f"`{key}`" for key in kind.keys)
    yield ", ".join(f"`{limit}` {default[limit]:g}" for limit in kind.limits) or "none"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
