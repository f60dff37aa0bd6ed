"""A comparison as text of 100 columns (accuracies and costs of each group, speed-ups, and notes), and as CSV files."""

from __future__ import annotations

import csv
import io
import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from winnow.view.text import LARGEST, format_count, format_duration, one_line, sanitize
from winnow_lab.compare.comparison import BINS, GroupComparison, SpeedUpRow, per_step
from winnow_lab.compare.curve import NORMAL, Estimate, heading, title
from winnow_lab.compare.speed_up import PODS_SHARE, SHARE, SeedTime, SpeedUp, TimeRatio

GAP = 2  # columns between two cells
STILL_RISING, UNSTABLE = "still rising", "unstable"
NO_DIFFERENCE = "no difference shown"
_HEAD = ("", "baseline", "group", "speed-up [95%]", f"PODS {PODS_SHARE:.0%}")
WIDTH = 100
LABEL = 22  # columns of a group's name, which continues on further lines
LONGEST = 60  # characters of the costs' source
ESTIMATE = ("mean", "standard_error", "low", "high", "seeds")
CURVES = ("group", "axis", "x", "measure", *ESTIMATE)
SPEED_UPS = (
    "group", "baseline", "axis", "measure", "costs",
    "level", "plateau", "plateau_gain", "plateau_gain_bound", "still_rising", "unstable",
    "seeds", "baseline_seeds", "paired", "censored_group", "censored_baseline", "at_first_group", "at_first_baseline",
    "group_time", "baseline_time", "ratio", "low", "high", "at_least", "at_most", "difference_shown",
    "pods_level", "pods_baseline_x", "pods_group_x", "pods_group_last_x", "pods_99", "pods_never_reached",
)  # fmt: skip
TIMES = ("group", "seed", "axis", "measure", "level", "ending", "time", "last_x", "at_last_evaluation")
ALLOCATION = ("group", "pass_rate", *ESTIMATE)


def speed_up_blocks(comparison: GroupComparison, width: int) -> Iterator[list[str]]:
    """The blocks of all groups; lines of at most `width` columns."""
    for label in dict.fromkeys(row.group for row in comparison.speed_ups):
        rows = [row for row in comparison.speed_ups if row.group == label]
        what = f"{label} against {comparison.baseline}: time to {SHARE:.0%} of the baseline's plateau, seed by seed"
        level = _level(comparison, rows[0].ratio)
        yield [
            *textwrap.wrap(one_line(what), width),
            *textwrap.wrap(one_line(level), width, initial_indent="  ", subsequent_indent="  "),
            *_axes([_HEAD, *(_axis(comparison, row) for row in rows)], width),
        ]


def _level(comparison: GroupComparison, ratio: TimeRatio) -> str:
    plateau = comparison.plateau
    level, value = (number(comparison, of) for of in (plateau.level or math.nan, plateau.value))
    marks = f", {STILL_RISING}" * plateau.still_rising + f", {UNSTABLE}" * plateau.unstable
    how = "compared seed by seed" if ratio.paired else "compared by group means, as the seeds are not the same"
    return f"level: {title(comparison.measure)} {level} (plateau {value}{marks}); {how}"


def _axis(comparison: GroupComparison, row: SpeedUpRow) -> tuple[str, str, str, str, str]:
    """The cells below `_HEAD`."""
    of = row.ratio
    baseline = _time(row.axis, of.baseline, comparison.times[comparison.baseline])
    group = _time(row.axis, of.group, comparison.times[row.group])
    return f"  {row.axis.replace('_', ' ')}", baseline, group, _ratio(of), pods_ratio(row.pods)


def _axes(rows: Sequence[tuple[str, str, str, str, str]], width: int) -> list[str]:
    """The rows as lines of `width` columns, wider only where the cells need it. Times are as wide as the widest one."""
    times = max(13, GAP + max(len(time) for row in rows for time in row[1:3]))
    ratios = max(width - 18 - 2 * times - GAP - 8, *(len(row[3]) for row in rows))
    return [
        f"{axis:18}{baseline:>{times}}{group:>{times}}{'':{GAP}}{ratio:<{ratios}}{pods:>8}"
        for axis, baseline, group, ratio, pods in rows
    ]


def _ratio(of: TimeRatio) -> str:
    if not math.isnan(of.ratio):
        interval = f" [{of.low:.2f}, {of.high:.2f}]" if of.has_interval else ""
        words = f"  {NO_DIFFERENCE}" if of.has_interval and not of.shows_difference else ""
        return f"{f'{of.ratio:.2f}x':>8}{interval}{words}"
    return bound(of) or f"{'-':>8}"


def bound(of: TimeRatio) -> str:
    """The bound of a ratio if a seed did not reach the level; empty if there is none."""
    for words, value in (("at least", of.at_least), ("at most", of.at_most)):
        if math.isnan(of.ratio) and not math.isnan(value):
            return f"{words} {value:.2f}x"
    return ""


def _time(axis: str, mean: float, seeds: Sequence[SeedTime]) -> str:
    return unreached(seeds) or amount(axis, mean)


def unreached(seeds: Sequence[SeedTime]) -> str:
    """ "1 of 3 never", "2 of 3 at once"; empty if all seeds reached the level after their first evaluation."""
    for ending, words in (("never", "never"), ("at the first", "at once")):
        count = sum(seed.ending == ending for seed in seeds)
        if count:
            return f"{count} of {len(seeds)} {words}"
    return ""


def pods_ratio(pods: SpeedUp | None) -> str:
    """ "1.72x", without any interval."""
    if pods is None:
        return "-"
    if pods.ratio is not None:
        return f"{pods.ratio:.2f}x"
    return "ended" if pods.ended_before else "never"


def number(comparison: GroupComparison, value: float) -> str:
    """A value of the measure: a share in percent, other measures with four digits."""
    return f"{value:.1%}" if comparison.plateau.share else f"{value:.4g}"


def amount(axis: str, x: float) -> str:
    """A place on an axis: "1:30:00", "3.4M", "12"."""
    if axis == "seconds":
        return format_duration(x) if x >= 60 else f"{x:.1f} s"
    return format_count(x) if axis != "steps" else f"{round(x, 1):g}"


def table(comparison: GroupComparison) -> str:
    """The text that `winnow compare` prints."""
    blocks = [_values(comparison), _costs(comparison), *speed_up_blocks(comparison, WIDTH), _notes(comparison)]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _values(comparison: GroupComparison) -> list[str]:
    share = comparison.plateau.share
    unit = " in percent" * share
    lines = textwrap.wrap(
        f"{one_line(heading(comparison.measure))}{unit}: mean ± 1.96 standard errors over seeds, "
        f"[95% interval of Student's t]",
        WIDTH,
    )
    rows = [("seeds", "final", "[95%]", "best", "[95%]", "at")]
    for group in comparison.groups:
        axis = comparison.main_axis(group.label)
        curve = comparison.curves[group.label, axis, comparison.measure]
        best = int(curve.mean.argmax())
        seeds = "mean" if group.seeds is None else str(group.seeds)
        final, highest = (_value(curve.at(place), share) for place in (len(curve.x) - 1, best))
        where = amount(axis, float(curve.x[best])) + " steps" * (axis == "steps")
        rows.append((f"{seeds:>5}", *final, *highest, where))
    return [*lines, *_group_table(comparison, rows, (7, 14, 16, 14, 17, 0))]


def _costs(comparison: GroupComparison) -> list[str]:
    axes = [axis for axis in comparison.axes if axis != "steps" and any(per_step(g, axis) for g in comparison.groups)]
    if not axes:
        return []
    rows = [tuple(axis.replace("_", " ") for axis in axes)]
    for group in comparison.groups:
        cells = (per_step(group, axis) for axis in axes)
        rows.append(tuple("-" if cell is None else _number(cell) for cell in cells))
    what = "per step, up to the last evaluation"
    if comparison.costs is not None:
        source = textwrap.shorten(one_line(comparison.costs.source), LONGEST, placeholder=" ...")
        what += f"; seconds are computed from the costs of {source}"
    return [*textwrap.wrap(what, WIDTH), *_group_table(comparison, rows, (26,) * len(axes))]


def _notes(comparison: GroupComparison) -> list[str]:
    return [
        line
        for note in comparison.notes
        for line in textwrap.wrap(sanitize(f"note: {note}"), WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    ]


def _group_table(comparison: GroupComparison, rows: Sequence[Sequence[str]], least: Sequence[int]) -> list[str]:
    """A head and a row of cells for each group, below and beside its label. A column has its `least` width, or more
    where a cell and the gap behind it need it.
    """
    widths = [
        max(width, GAP + max(map(len, column))) for width, column in zip(least, zip(*rows, strict=True), strict=True)
    ]
    head, *others = ("".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    labels = (group.label for group in comparison.groups)
    lines = [_row("group", head)]
    for label, cells in zip(labels, others, strict=True):
        first, *further = textwrap.wrap(one_line(label), LABEL) or [""]
        lines += [_row(first, cells), *(f"  {line}" for line in further)]
    return lines


def _row(label: str, cells: str) -> str:
    return f"{label:<{LABEL}}{'':{GAP}}{cells}".rstrip()


def _value(of: Estimate, share: bool) -> tuple[str, str]:
    """ "80.8 ± 1.2", "[78.1, 83.5]": a share in percent, other measures with three digits of the mean."""
    scale, decimals = (100.0, 1) if share else (1.0, _decimals(abs(of.mean)))
    mean, error, low, high = _written(of, scale, decimals)
    interval = "" if math.isnan(of.low) else f"[{low}, {high}]"
    return mean if math.isnan(of.standard_error) else f"{mean} ± {error}", interval


def _written(of: Estimate, scale: float, decimals: int) -> list[str]:
    """Mean, 1.96 standard errors and both ends with so many decimals; with an exponent, if one would be long."""
    numbers = [scale * number for number in (of.mean, NORMAL * of.standard_error, of.low, of.high)]
    long = decimals > 6 or any(abs(number) >= LARGEST for number in numbers)
    return [f"{number:.2e}" if long else f"{number:.{decimals}f}" for number in numbers]


def _decimals(number: float) -> int:
    """The decimal places with which a number has three digits."""
    return max(0, 2 - math.floor(math.log10(number))) if 0 < number < 1000 else 0


def _number(of: Estimate) -> str:
    """ "2.13 ± 0.08 [1.93, 2.33]k", three digits of the mean."""
    unit, letter = next((u for u in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if u[0] <= of.mean < LARGEST), (1.0, ""))
    mean, error, low, high = _written(of, 1 / unit, _decimals(max(1.0, of.mean / unit)))
    return f"{mean}{letter}" if math.isnan(of.low) else f"{mean} ± {error} [{low}, {high}]{letter}"


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
        *(plateau.level, plateau.value, plateau.gain, plateau.bound, plateau.still_rising, plateau.unstable),
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
                to = group.label, seed.seed, axis, comparison.measure, comparison.plateau.level, seed.ending
                yield *to, seed.x[axis] if seed.reached else None, float(x[-1]), seed.at_last


def _allocation(comparison: GroupComparison) -> Iterator[tuple[Any, ...]]:
    seeds = {group.label: group.seeds for group in comparison.groups}
    for label, counts in comparison.allocation.items():
        for name, count in zip(BINS, counts, strict=True):
            if count is not None:
                yield label, name, *Estimate(*count), seeds[label]


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value
