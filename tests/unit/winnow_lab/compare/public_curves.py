"""The public curves of PODS (Xu et al. 2025, arXiv 2504.13818), recomputed from its result files, as CSV files."""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path

import pytest

FILE = "pods_recomputed_curves.txt"
POINT = re.compile(r"(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)")
GA = {"H100": "d", "A100": "e"}


def public_curves() -> Path:
    """The file of curves; a test that needs it is skipped without it."""
    beside = Path(os.environ.get("WINNOW_TEST_DATA", "")).parent / "reference" / FILE
    path = Path(os.environ.get("WINNOW_PUBLIC_CURVES", beside))
    if not path.is_file():
        pytest.skip(f"no public curves in {path}; name {FILE} in WINNOW_PUBLIC_CURVES")
    return path


def as_csv(path: Path, folder: Path) -> dict[str, Path]:
    """setting -> CSV file, of the sections (a) to (e); of (c) one per measure: "c both_acc", "c ans_acc", "c for_acc".

    Sections (a) to (c) end with their name, and are in hours; (d) and (e) begin with theirs, and are in minutes.
    """
    sections: dict[str, list[tuple[str, str, str, str]]] = {}
    open_rows: list[tuple[str, str, str, str]] = []
    group = accuracy = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.split()
        if line.startswith("## "):
            group = words[1]
        elif re.match(r"\([a-e]\)", line):
            sections[line[1] + line[3:]] = open_rows
            open_rows = []
        elif words and words[0] in GA:
            open_rows = sections[GA[words[0]]] = []
        elif words and words[0] in ("GA", "PODS"):
            group = words[0]
        elif words and words[0] == "acc":
            accuracy = line
        elif words and words[0] == "len":
            lengths = dict(POINT.findall(line))
            open_rows += [(group, x, y, lengths[x]) for x, y in POINT.findall(accuracy)]
    return {name: _written(folder / f"{name}.csv", name, rows) for name, rows in sections.items()}


def _written(path: Path, name: str, rows: list[tuple[str, str, str, str]]) -> Path:
    clock = "minutes" if name in GA.values() else "hours"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["group", clock, "accuracy", "length"])
        writer.writerows(rows)
    return path
