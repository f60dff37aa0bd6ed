"""A comparison in text: accuracies and costs of each group, speed-ups, and what to know about them. 100 columns."""

from __future__ import annotations

import math
import textwrap

from winnow.report.comparison.compared import GroupComparison, per_step
from winnow.report.comparison.mean_curve import NORMAL, Estimate
from winnow.report.comparison.measure import title
from winnow.report.comparison.speed_up_table import amount, speed_up_blocks
from winnow.report.text import one_line, safe

WIDTH = 100
LABEL = 23  # columns of a group's name, which goes on in further lines
LONGEST = 60  # characters of the costs' source


def table(found: GroupComparison) -> str:
    """The text under `winnow compare`."""
    blocks = [_values(found), _costs(found), *speed_up_blocks(found, WIDTH), _notes(found)]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _values(found: GroupComparison) -> list[str]:
    share = found.plateau.share
    head = _row("group", f"{'seeds':>5}  {'final':<14}{'[95%]':<16}{'best':<14}{'[95%]':<16} at")
    unit = " in percent" * share
    lines = [
        *textwrap.wrap(
            f"held-out {one_line(title(found.measure))}{unit}: mean ± 1.96 standard errors over seeds, "
            f"[95% interval of Student's t]",
            WIDTH,
        ),
        head,
    ]
    for group in found.groups:
        axis = found.main_axis(group.label)
        curve = found.curves[group.label, axis, found.measure]
        best = int(curve.mean.argmax())
        seeds = "mean" if group.seeds is None else str(group.seeds)
        shown = "".join(_value(curve.at(place), share) for place in (len(curve.x) - 1, best))
        lines += _labelled(group.label, f"{seeds:>5}  {shown} {_at(axis, float(curve.x[best]))}")
    return lines


def _costs(found: GroupComparison) -> list[str]:
    axes = [axis for axis in found.axes if axis != "steps" and any(per_step(g, axis) for g in found.groups)]
    if not axes:
        return []
    names = (f"{axis.replace('_', ' '):<25} " for axis in axes)
    lines = [*textwrap.wrap(_what_is_counted(found), WIDTH), _row("group", "".join(names))]
    for group in found.groups:
        cells = (per_step(group, axis) for axis in axes)
        lines += _labelled(group.label, "".join(f"{'-' if cell is None else _number(cell):<25} " for cell in cells))
    return lines


def _what_is_counted(found: GroupComparison) -> str:
    what = "per step, up to the last evaluation"
    if found.costs is None:
        return what
    source = textwrap.shorten(one_line(found.costs.source), LONGEST, placeholder=" ...")
    return f"{what}; seconds are computed from the costs of {source}"


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


def _value(found: Estimate, share: bool) -> str:
    """ "80.8 ± 1.2     [78.1, 83.5]   ", a share in percent; anything else with three digits of the mean."""
    scale, decimals = (100.0, 1) if share else (1.0, _decimals(abs(found.mean)))
    mean, error, low, high = (
        f"{scale * number:.{decimals}f}"
        for number in (found.mean, NORMAL * found.standard_error, found.low, found.high)
    )
    interval = "" if math.isnan(found.low) else f"[{low}, {high}]"
    return f"{mean if math.isnan(found.standard_error) else f'{mean} ± {error}':<14}{interval:<16}"


def _decimals(number: float) -> int:
    """After the point, so that three digits are shown."""
    return max(0, 2 - math.floor(math.log10(number))) if 0 < number < 1000 else 0


def _number(found: Estimate) -> str:
    """ "2.13 ± 0.08 [1.93, 2.33]k", three digits of the mean."""
    unit, letter = next((u for u in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if found.mean >= u[0]), (1.0, ""))
    decimals = _decimals(max(1.0, found.mean / unit))
    mean, error, low, high = (
        f"{number / unit:.{decimals}f}" for number in (found.mean, NORMAL * found.standard_error, found.low, found.high)
    )
    return f"{mean}{letter}" if math.isnan(found.low) else f"{mean} ± {error} [{low}, {high}]{letter}"


def _at(axis: str, x: float) -> str:
    return f"{amount(axis, x)} {'steps' if axis == 'steps' else ''}".rstrip()
