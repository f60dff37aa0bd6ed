"""A comparison as CSV files: points of curves, times to the level, speed-ups, rollouts by pass rate."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator
from typing import Any

from winnow.commands.compare.comparison import BINS, GroupComparison, SpeedUpRow
from winnow.commands.compare.curve import Estimate
from winnow.commands.compare.speed_up import SeedTime, SpeedUp

ESTIMATE = ("mean", "standard_error", "low", "high", "seeds")
CURVES = ("group", "axis", "x", "measure", *ESTIMATE)
SPEED_UPS = (
    "group", "baseline", "axis", "measure", "costs",
    "level", "plateau", "plateau_gain", "plateau_gain_bound", "still_rising",
    "seeds", "baseline_seeds", "paired", "censored_group", "censored_baseline", "at_first_group", "at_first_baseline",
    "group_time", "baseline_time", "ratio", "low", "high", "at_least", "at_most", "difference_shown",
    "pods_level", "pods_baseline_x", "pods_group_x", "pods_group_last_x", "pods_99", "pods_never_reached",
)  # fmt: skip
TIMES = ("group", "seed", "axis", "measure", "level", "ending", "time", "last_x", "at_last_evaluation")
ALLOCATION = ("group", "pass_rate", *ESTIMATE)
YES, NO = "yes", "no"


def tables(comparison: GroupComparison) -> dict[str, bytes]:
    """{file: its bytes} of curves.csv, speed_ups.csv, times.csv and, with an allocation, allocation.csv.

    An empty cell is an unknown number.
    """
    rows = {
        "curves.csv": (CURVES, _curves(comparison)),
        "speed_ups.csv": (SPEED_UPS, (_speed_up(row, comparison) for row in comparison.speed_ups)),
        "times.csv": (TIMES, _times(comparison)),
    }
    if comparison.allocation:
        rows["allocation.csv"] = (ALLOCATION, _allocation(comparison))
    return {name: _table(*rows_of) for name, rows_of in rows.items()}


def _table(header: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue().encode("utf-8", errors="backslashreplace")


def _curves(comparison: GroupComparison) -> Iterator[tuple[Any, ...]]:
    seeds = {group.label: group.seeds for group in comparison.groups}
    for (label, axis, measure), curve in comparison.curves.items():
        for place, x in enumerate(curve.x.tolist()):
            yield label, axis, x, measure, *curve.at(place), seeds[label]


def _speed_up(row: SpeedUpRow, comparison: GroupComparison) -> tuple[Any, ...]:
    of, plateau = row.ratio, comparison.plateau
    group, baseline = comparison.times[row.group], comparison.times[comparison.baseline]
    seeds = {other.label: other.seeds for other in comparison.groups}
    endings = (
        sum(s.ending == ending for s in side) for ending in ("never", "at the first") for side in (group, baseline)
    )
    return (
        *(row.group, comparison.baseline, row.axis, comparison.measure, comparison.costs and comparison.costs.source),
        *(plateau.level, plateau.value, plateau.gain, plateau.bound, plateau.still_rising),
        *(seeds[row.group], seeds[comparison.baseline], of.paired, *endings),
        *(of.group, of.baseline, of.ratio, of.low, of.high, of.at_least, of.at_most),
        of.shows_difference if of.has_interval else None,
        *_pods(row.pods),
    )


def _pods(pods: SpeedUp | None) -> tuple[Any, ...]:
    if pods is None:
        return (None,) * 6
    never = [name for name, x in (("baseline", pods.baseline), ("group", pods.other)) if x is None]
    return pods.level, pods.baseline, pods.other, pods.ends, pods.ratio, " and ".join(never)


def _times(comparison: GroupComparison) -> Iterator[tuple[Any, ...]]:
    for group in comparison.groups:
        for seed, curve in zip(comparison.times.get(group.label, ()), group.curves, strict=False):
            for axis, x in curve.x.items():
                time = seed.x[axis] if seed.reached else None
                yield _seed_time(group.label, axis, comparison, seed, time, float(x[-1]))


def _seed_time(
    label: str, axis: str, comparison: GroupComparison, seed: SeedTime, time: float | None, last: float
) -> tuple[Any, ...]:
    return label, seed.seed, axis, comparison.measure, comparison.plateau.level, seed.ending, time, last, seed.at_last


def _allocation(comparison: GroupComparison) -> Iterator[tuple[Any, ...]]:
    seeds = {group.label: group.seeds for group in comparison.groups}
    for label, by_rate in comparison.allocation.items():
        for name, count in zip(BINS, by_rate.counts, strict=True):
            if count is not None:
                yield label, name, *Estimate(*count), seeds[label]


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return YES if value else NO
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value
