"""A comparison as text of 100 columns: accuracies and costs of each group, speed-ups, and notes about them."""

from __future__ import annotations

import math
import textwrap

from winnow.commands.compare.comparison import GroupComparison, per_step
from winnow.commands.compare.mean_curve import NORMAL, Estimate
from winnow.commands.compare.measure import title
from winnow.commands.compare.speed_up_table import amount, speed_up_blocks
from winnow.view.text import one_line, sanitize

WIDTH = 100
LABEL = 23  # columns of a group's name, which continues on further lines
LONGEST = 60  # characters of the costs' source


def table(comparison: GroupComparison) -> str:
    """The text that `winnow compare` prints."""
    blocks = [_values(comparison), _costs(comparison), *speed_up_blocks(comparison, WIDTH), _notes(comparison)]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _values(comparison: GroupComparison) -> list[str]:
    share = comparison.plateau.share
    head = _row("group", f"{'seeds':>5}  {'final':<14}{'[95%]':<16}{'best':<14}{'[95%]':<16} at")
    unit = " in percent" * share
    lines = [
        *textwrap.wrap(
            f"held-out {one_line(title(comparison.measure))}{unit}: mean ± 1.96 standard errors over seeds, "
            f"[95% interval of Student's t]",
            WIDTH,
        ),
        head,
    ]
    for group in comparison.groups:
        axis = comparison.main_axis(group.label)
        curve = comparison.curves[group.label, axis, comparison.measure]
        best = int(curve.mean.argmax())
        seeds = "mean" if group.seeds is None else str(group.seeds)
        shown = "".join(_value(curve.at(place), share) for place in (len(curve.x) - 1, best))
        lines += _labelled(group.label, f"{seeds:>5}  {shown} {_at(axis, float(curve.x[best]))}")
    return lines


def _costs(comparison: GroupComparison) -> list[str]:
    axes = [axis for axis in comparison.axes if axis != "steps" and any(per_step(g, axis) for g in comparison.groups)]
    if not axes:
        return []
    names = (f"{axis.replace('_', ' '):<25} " for axis in axes)
    lines = [*textwrap.wrap(_what_is_counted(comparison), WIDTH), _row("group", "".join(names))]
    for group in comparison.groups:
        cells = (per_step(group, axis) for axis in axes)
        lines += _labelled(group.label, "".join(f"{'-' if cell is None else _number(cell):<25} " for cell in cells))
    return lines


def _what_is_counted(comparison: GroupComparison) -> str:
    what = "per step, up to the last evaluation"
    if comparison.costs is None:
        return what
    source = textwrap.shorten(one_line(comparison.costs.source), LONGEST, placeholder=" ...")
    return f"{what}; seconds are computed from the costs of {source}"


def _notes(comparison: GroupComparison) -> list[str]:
    return [
        line
        for note in comparison.notes
        for line in textwrap.wrap(sanitize(f"note: {note}"), WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    ]


def _labelled(label: str, cells: str) -> list[str]:
    first, *others = textwrap.wrap(one_line(label), LABEL) or [""]
    return [_row(first, cells), *(f"  {line}" for line in others)]


def _row(label: str, cells: str) -> str:
    return f"{label:<{LABEL}} {cells}".rstrip()


def _value(of: Estimate, share: bool) -> str:
    """ "80.8 ± 1.2     [78.1, 83.5]   ": a share in percent, other measures with three digits of the mean."""
    scale, decimals = (100.0, 1) if share else (1.0, _decimals(abs(of.mean)))
    mean, error, low, high = (
        f"{scale * number:.{decimals}f}" for number in (of.mean, NORMAL * of.standard_error, of.low, of.high)
    )
    interval = "" if math.isnan(of.low) else f"[{low}, {high}]"
    return f"{mean if math.isnan(of.standard_error) else f'{mean} ± {error}':<14}{interval:<16}"


def _decimals(number: float) -> int:
    """The decimal places with which a number has three digits."""
    return max(0, 2 - math.floor(math.log10(number))) if 0 < number < 1000 else 0


def _number(of: Estimate) -> str:
    """ "2.13 ± 0.08 [1.93, 2.33]k", three digits of the mean."""
    unit, letter = next((u for u in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if of.mean >= u[0]), (1.0, ""))
    decimals = _decimals(max(1.0, of.mean / unit))
    mean, error, low, high = (
        f"{number / unit:.{decimals}f}" for number in (of.mean, NORMAL * of.standard_error, of.low, of.high)
    )
    return f"{mean}{letter}" if math.isnan(of.low) else f"{mean} ± {error} [{low}, {high}]{letter}"


def _at(axis: str, x: float) -> str:
    return f"{amount(axis, x)} {'steps' if axis == 'steps' else ''}".rstrip()
