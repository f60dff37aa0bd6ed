"""A comparison as CSV files: every point of every curve, speed-ups, and rollouts by pass rate."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator
from typing import Any

from winnow.report.comparison.compared import GroupComparison, SpeedUpRow
from winnow.report.comparison.mean_curve import Estimate
from winnow.report.comparison.pass_rate_counts import BINS

ESTIMATE = ("mean", "standard_error", "low", "high", "seeds")
CURVES = ("group", "axis", "x", "measure", *ESTIMATE)
SPEED_UPS = (
    "group", "baseline", "axis", "share", "level", "baseline_x", "group_x", "group_last_x", "speed_up", "never_reached",
    "lowest_without_one_seed", "highest_without_one_seed", "never_without_one_seed", "variants_without_one_seed",
)  # fmt: skip
ALLOCATION = ("group", "pass_rate", *ESTIMATE)


def tables(found: GroupComparison) -> dict[str, bytes]:
    """{file: its bytes} of curves.csv, speed_ups.csv and, where there is one, allocation.csv; an empty cell is an
    unknown number.
    """
    speed_ups = (_speed_up(row, found.baseline) for row in found.speed_ups)
    rows = {"curves.csv": (CURVES, _curves(found)), "speed_ups.csv": (SPEED_UPS, speed_ups)}
    if found.allocation:
        rows["allocation.csv"] = (ALLOCATION, _allocation(found))
    return {name: _table(*rows_of) for name, rows_of in rows.items()}


def _table(header: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue().encode("utf-8", errors="backslashreplace")


def _curves(found: GroupComparison) -> Iterator[tuple[Any, ...]]:
    seeds = {group.label: group.seeds for group in found.groups}
    for (label, axis, measure), curve in found.curves.items():
        for place, x in enumerate(curve.x.tolist()):
            yield label, axis, x, measure, *curve.at(place), seeds[label]


def _speed_up(row: SpeedUpRow, baseline: str) -> tuple[Any, ...]:
    whole, left = row.whole, row.left_out
    never = [name for name, x in (("baseline", whole.baseline), ("group", whole.other)) if x is None]
    moved = (None,) * 4 if left is None else (left.lowest, left.highest, left.never, left.variants)
    reached = (whole.level, whole.baseline, whole.other, whole.ends, whole.ratio, " and ".join(never))
    return row.group, baseline, row.axis, row.share, *reached, *moved


def _allocation(found: GroupComparison) -> Iterator[tuple[Any, ...]]:
    seeds = {group.label: group.seeds for group in found.groups}
    for label, by_rate in found.allocation.items():
        for name, count in zip(BINS, by_rate.counts, strict=True):
            if count is not None:
                yield label, name, *Estimate(*count), seeds[label]


def _cell(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value
