"""A comparison in text: accuracies and costs of each group, speed-ups, and what to know about them. 100 columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence

from winnow.report.comparison.compared import GroupComparison, SpeedUpRow, per_step
from winnow.report.comparison.mean_curve import NORMAL, Estimate
from winnow.report.comparison.speed_up import SHARE, LeftOut
from winnow.report.text import compact, duration, one_line, safe

WIDTH = 100
LABEL = 23  # columns of a group's name, which goes on in further lines
NEVER = "never reached"
RANGE = (
    '"without one seed" is the range of the speed-ups that are left when any one seed is left out. It is no confidence '
    "interval: seeds of one configuration, split in two groups, often give a range without 1.00 (docs/compare.md)."
)


def table(found: GroupComparison) -> str:
    """The text under `winnow compare`."""
    blocks = [_accuracies(found), _costs(found), *_speed_ups(found), _range_explained(found), _notes(found)]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _accuracies(found: GroupComparison) -> list[str]:
    head = _row("group", f"{'seeds':>5}  {'final':<12}{'[95%]':<16}  {'best':<12}{'[95%]':<16}  at")
    lines = [
        "held-out accuracy in percent: mean ± 1.96 standard errors over seeds, [95% interval of Student's t]",
        head,
    ]
    for group in found.groups:
        axis = found.main_axis(group.label)
        curve = found.curves[group.label, axis, "accuracy"]
        best = int(curve.mean.argmax())
        seeds = "mean" if group.seeds is None else str(group.seeds)
        shown = "  ".join(_percent(curve.at(place)) for place in (len(curve.x) - 1, best))
        lines += _labelled(group.label, f"{seeds:>5}  {shown}  {_at(axis, float(curve.x[best]))}")
    return lines


def _costs(found: GroupComparison) -> list[str]:
    axes = [axis for axis in found.axes if axis != "steps" and any(per_step(g, axis) for g in found.groups)]
    if not axes:
        return []
    names = (f"{axis.replace('_', ' '):<25} " for axis in axes)
    lines = ["per step, up to the last evaluation", _row("group", "".join(names))]
    for group in found.groups:
        cells = (per_step(group, axis) for axis in axes)
        lines += _labelled(group.label, "".join(f"{'-' if cell is None else _number(cell):<25} " for cell in cells))
    return lines


def _speed_ups(found: GroupComparison) -> Iterator[list[str]]:
    """A block for each group but the baseline."""
    for label in dict.fromkeys(row.group for row in found.speed_ups):
        rows = [row for row in found.speed_ups if row.group == label]
        title = f"{label} against {found.baseline}: who reaches {SHARE:.0%} of the baseline's best mean accuracy sooner"
        head = (
            f"{'':18}{'to reach':>9}{'baseline':>14}{'group':>14}{'speed-up':>10}   {'without one seed':<20}to the best"
        )
        yield [
            *textwrap.wrap(one_line(title), WIDTH),
            head,
            *(_axis(row, _best(row, rows)) for row in rows if row.share == SHARE),
        ]


def _best(row: SpeedUpRow, rows: Sequence[SpeedUpRow]) -> SpeedUpRow:
    return next(other for other in rows if other.axis == row.axis and other.share == 1.0)


def _axis(row: SpeedUpRow, best: SpeedUpRow) -> str:
    whole = row.whole
    baseline = NEVER if whole.baseline is None else amount(row.axis, whole.baseline)
    group = f"not by {amount(row.axis, whole.ends)}" if whole.ended_before else NEVER
    group = group if whole.other is None else amount(row.axis, whole.other)
    ratio, to_best = ("-" if r.whole.ratio is None else f"{r.whole.ratio:.2f}x" for r in (row, best))
    places = f"{row.whole.level:>9.1%}{baseline:>14}{group:>14}"
    return f"  {row.axis.replace('_', ' '):16}{places}{ratio:>10}   {_range(row.left_out):<20}{to_best:>11}"


def _range(left_out: LeftOut | None) -> str:
    if left_out is None:
        return "-"
    if left_out.lowest is None or left_out.highest is None:
        return "never"
    never = f", {left_out.never} never" if left_out.never else ""
    return f"{left_out.lowest:.2f}-{left_out.highest:.2f}{never}"


def _range_explained(found: GroupComparison) -> list[str]:
    """What the column "without one seed" is not; nothing where it is empty."""
    return textwrap.wrap(RANGE, WIDTH) if any(row.left_out is not None for row in found.speed_ups) else []


def _notes(found: GroupComparison) -> list[str]:
    return [
        line
        for note in found.notes
        for line in textwrap.wrap(safe(f"note: {note}"), WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    ]


def _labelled(label: str, cells: str) -> list[str]:
    first, *others = textwrap.wrap(one_line(label), LABEL) or [""]
    return [_row(first, cells), *(f"  {line}" for line in others)]


def _row(label: str, cells: str) -> str:
    return f"{label:<{LABEL}} {cells}".rstrip()


def _percent(found: Estimate) -> str:
    """ "80.8 ± 1.2   [78.1, 83.5]   ", in percent."""
    error = "" if math.isnan(found.standard_error) else f" ± {100 * NORMAL * found.standard_error:.1f}"
    interval = "" if math.isnan(found.low) else f"[{100 * found.low:.1f}, {100 * found.high:.1f}]"
    return f"{f'{100 * found.mean:.1f}{error}':<12}{interval:<16}"


def _number(found: Estimate) -> str:
    """ "2.13 ± 0.08 [1.93, 2.33]k", three digits of the mean."""
    unit, letter = next((u for u in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if found.mean >= u[0]), (1.0, ""))
    decimals = max(0, 2 - math.floor(math.log10(max(1.0, found.mean / unit))))
    mean, error, low, high = (
        f"{number / unit:.{decimals}f}" for number in (found.mean, NORMAL * found.standard_error, found.low, found.high)
    )
    return f"{mean}{letter}" if math.isnan(found.low) else f"{mean} ± {error} [{low}, {high}]{letter}"


def _at(axis: str, x: float) -> str:
    return f"{amount(axis, x)} {'steps' if axis == 'steps' else ''}".rstrip()


def amount(axis: str, x: float) -> str:
    """A place on an axis: "1:30:00", "3.4M", "12"."""
    if axis == "seconds":
        return duration(x) if x >= 60 else f"{x:.1f} s"
    return compact(x) if axis != "steps" else f"{x:g}"
