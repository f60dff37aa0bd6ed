"""Displays whose layout is the behaviour: one file per display under tests/golden, and the only place that pins it.

    assert_golden("compare_table", text)

To accept a new layout: `WINNOW_UPDATE_GOLDEN=1 python -m pytest PATH`, then read the difference in git.
"""

from __future__ import annotations

import os
from pathlib import Path

_FOLDER = Path(__file__).parent / "golden"


def assert_golden(name: str, text: str) -> None:
    """The text equals `tests/golden/NAME.txt` except for blanks at line ends; an update writes the file first."""
    path = _FOLDER / f"{name}.txt"
    lines = [line.rstrip() for line in text.rstrip().splitlines()]
    if os.environ.get("WINNOW_UPDATE_GOLDEN"):
        _FOLDER.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert path.is_file(), f"no {path}: run the test with WINNOW_UPDATE_GOLDEN=1 and read the file"
    assert lines == path.read_text(encoding="utf-8").splitlines(), "the display differs from its golden file"
