"""A comparison as a picture for a paper: accuracy by time and tokens, length, format, allocation; PNG and SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from winnow.view.drawing import EngFormatter, Figure, Line2D, MaxNLocator, Patch, new_figure, picture, scale_of_shares
from winnow.view.text import one_line
from winnow_lab.compare.comparison import BINS, GroupComparison
from winnow_lab.compare.curve import NORMAL, MeanCurve, heading
from winnow_lab.compare.speed_up import SHARE, TimeRatio
from winnow_lab.compare.text import bound, unreached

# The baseline is black; the others have Okabe and Ito's colours. Dashes and markers differ too, for prints without
# colour.
COLORS = ("#000000", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ("-", (0, (6, 1.5)), (0, (4, 1, 1, 1)), (0, (1, 1)), (0, (8, 1, 1, 1, 1, 1)), (0, (3, 2)), (0, (2, 0.6)))
MARKERS = "osD^vPX"
DARKNESS = 0.2, 0.08  # of the bands of 1.96 standard errors, and of Student's t around it
MARKS = 8  # markers on a line, about
LONGEST = 44  # characters of a label
CLOCKS = ((7200.0, 3600.0, "hours"), (180.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))  # (from, unit, name), in seconds

NAMES = {
    "seconds": "training time",
    "tokens_generated": "tokens generated",
    "tokens_trained": "tokens trained on",
    "steps": "training steps",
}
MOST_LISTED = 6  # speed-ups in a panel; the table has all
STYLES = {"answer": "-", "formatted": (0, (1, 1)), "correct_and_formatted": (0, (5, 2))}  # dashes; colours mean groups
Draw = Callable[[Any], None]


class Look(NamedTuple):
    """The style of a group."""

    color: str
    dashes: Any
    marker: str

    @property
    def style(self) -> dict[str, Any]:
        """The style as arguments of matplotlib."""
        return {"color": self.color, "linestyle": self.dashes, "marker": self.marker, "markersize": 4}


def looks(comparison: GroupComparison) -> dict[str, Look]:
    """The style of each group, the baseline first."""
    labels = sorted((group.label for group in comparison.groups), key=lambda label: label != comparison.baseline)
    places = ((COLORS[i % 7], DASHES[(i + i // 7) % 7], MARKERS[(i + i // 7) % 7]) for i in range(len(labels)))
    return {label: Look(*place) for label, place in zip(labels, places, strict=True)}


def draw_band(panel: Any, curve: MeanCurve, look: Look, scale: float) -> None:
    """Draw the mean, with 1.96 standard errors as a darker band and Student's t interval as a lighter one."""
    x, error = curve.x / scale, NORMAL * curve.standard_error
    if np.isfinite(curve.low).all():
        panel.fill_between(x, curve.low, curve.high, color=look.color, alpha=DARKNESS[1], linewidth=0)
        panel.fill_between(x, curve.mean - error, curve.mean + error, color=look.color, alpha=DARKNESS[0], linewidth=0)
    panel.plot(x, curve.mean, linewidth=1.4, markevery=every(curve), zorder=3, **look.style)


def every(curve: MeanCurve) -> int:
    """The number of points between two markers."""
    return max(1, round(len(curve.x) / MARKS))


def scale_x(panel: Any, comparison: GroupComparison, axis: str) -> float:
    """Label the x axis, and return the size of one of its units in values of the axis."""
    panel.xaxis.set_major_locator(MaxNLocator(nbins=6))
    if axis != "seconds":
        panel.set_xlabel(NAMES[axis])
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        return 1.0
    last = max(float(curve.x[-1]) for (_, known, _), curve in comparison.curves.items() if known == axis)
    _, unit, name = next(clock for clock in CLOCKS if last >= clock[0])
    panel.set_xlabel(f"{NAMES[axis]}{', computed' * (comparison.costs is not None)} ({name})")
    return unit


def scale_y(panel: Any, curves: Sequence[MeanCurve], possible: tuple[float, float]) -> None:
    """Scale the y axis to the means and 1.96 standard errors; the wider interval of two seeds may be cut off."""
    errors = [np.nan_to_num(NORMAL * curve.standard_error) for curve in curves]
    low = min(float((curve.mean - error).min()) for curve, error in zip(curves, errors, strict=True))
    high = max(float((curve.mean + error).max()) for curve, error in zip(curves, errors, strict=True))
    room = 0.35 * (high - low) or 0.02 * (high or 1.0)
    first, last = panel.get_ylim()
    panel.set_ylim(max(first, low - room, possible[0]), min(last, high + room, possible[1]))


def short(label: str, limit: int = LONGEST) -> str:
    """Both ends of a long label, as groups may differ at either end. "$" is escaped for matplotlib."""
    text, half = one_line(label), (limit - 3) // 2
    return (text if len(text) <= limit else f"{text[:half]}...{text[-half:]}").replace("$", r"\$")


def pictures(comparison: GroupComparison) -> dict[str, bytes]:
    """{file: its bytes} of comparison.png and comparison.svg."""
    figure = draw_comparison(comparison)
    return {name: picture(figure, Path(name), dpi=200) for name in ("comparison.png", "comparison.svg")}


def draw_comparison(comparison: GroupComparison) -> Figure:
    """Draw a panel per axis for the measure, and one each for length, format and allocation where a group has them."""
    panels = list(_panels(comparison))
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = -(-len(panels) // columns)
    handles = _handles(comparison)
    width = max(4.8, 3.7 * columns)
    beside = max(1, min(len(handles), int(14 * width / (8 + max(len(str(h.get_label())) for h in handles)))))
    figure = new_figure(width, 3.1 * rows + 0.25 + 0.17 * -(-len(handles) // beside))
    places = list(figure.subplots(rows, columns, squeeze=False).flat)
    for place, draw in zip(places, panels, strict=False):
        draw(place)
        place.grid(alpha=0.25, linewidth=0.6)
        place.spines[["top", "right"]].set_visible(False)
    for place in places[len(panels) :]:
        place.remove()
    below = {"loc": "outside lower center", "ncols": beside, "fontsize": 8, "frameon": False, "handlelength": 3.2}
    figure.legend(handles=handles, **below)
    return figure


def _panels(comparison: GroupComparison) -> Iterator[Draw]:
    axes = [axis for axis in comparison.axes if axis != "steps"] or ["steps"]
    yield from (partial(_measured, comparison, axis) for axis in axes)
    known = {measure for _, _, measure in comparison.curves}

    def most(*measures: str) -> str:
        """The axis with the most curves of these measures."""
        return max(
            (*axes, "steps"), key=lambda axis: sum((a, m in measures) == (axis, True) for _, a, m in comparison.curves)
        )

    if "length" in known:
        yield partial(_length, comparison, most("length"))
    if known & {"formatted", "correct_and_formatted"}:
        yield partial(_parts, comparison, most("formatted", "correct_and_formatted"))
    if comparison.allocation:
        yield partial(_allocation, comparison)


def _measured(comparison: GroupComparison, axis: str, panel: Any) -> None:
    """Draw the measure with both bands, the plateau's level, and a ring at each group's time to it."""
    scale = scale_x(panel, comparison, axis)
    for label, look in looks(comparison).items():
        curve = comparison.curves.get((label, axis, comparison.measure))
        if curve is not None:
            draw_band(panel, curve, look, scale)
    rows, level = [row for row in comparison.speed_ups if row.axis == axis], comparison.plateau.level
    if rows and level is not None:
        panel.axhline(level, color="#777777", linewidth=0.8, linestyle=":", zorder=1)
        ratios = {comparison.baseline: rows[0].ratio.baseline, **{row.group: row.ratio.group for row in rows}}
        for label, x in ratios.items():
            if not math.isnan(x):
                ring = {"s": 90, "facecolors": "none", "edgecolors": looks(comparison)[label].color, "linewidths": 1.2}
                panel.scatter([x / scale], [level], zorder=4, **ring)
    name, share = heading(comparison.measure), comparison.plateau.share
    if share:
        scale_of_shares(panel, name)
    else:
        panel.set_ylabel(name)
    curves = [c for (_, a, m), c in comparison.curves.items() if (a, m) == (axis, comparison.measure)]
    scale_y(panel, curves, (0.0, 1.0) if share else (-math.inf, math.inf))
    if 0 < len(rows) <= MOST_LISTED:
        texts = {row.group: _ratio_text(comparison, row.group, row.ratio) for row in rows}
        _list_speed_ups(panel, texts, looks(comparison))


def _ratio_text(comparison: GroupComparison, group: str, of: TimeRatio) -> str:
    if not math.isnan(of.ratio):
        return f"{of.ratio:.2f}x" + (f" [{of.low:.2f}, {of.high:.2f}]" if of.has_interval else "")
    reason = unreached(comparison.times[group]) or f"baseline {unreached(comparison.times[comparison.baseline])}"
    return ", ".join(filter(None, (bound(of), reason)))


def _list_speed_ups(panel: Any, texts: Mapping[str, str], of: Mapping[str, Look]) -> None:
    """List the speed-ups in a legend at the place where it covers least."""
    marks = [
        Line2D([], [], label=f"{short(label, 26)}: {text}", **of[label].style | {"linestyle": "none"})
        for label, text in texts.items()
    ]
    box = {"fontsize": 7, "title_fontsize": 7, "handlelength": 0.8, "labelspacing": 0.3, "edgecolor": "none"}
    head = f"{SHARE:.0%} of the baseline's plateau, sooner by"
    panel.legend(handles=marks, title=head, loc="best", framealpha=0.75, alignment="left", **box)


def _length(comparison: GroupComparison, axis: str, panel: Any) -> None:
    scale = scale_x(panel, comparison, axis)
    for label, look in looks(comparison).items():
        curve = comparison.curves.get((label, axis, "length"))
        if curve is not None:
            draw_band(panel, curve, look, scale)
    panel.set_ylabel("mean completion length (tokens)")
    scale_y(panel, [c for (_, a, m), c in comparison.curves.items() if (a, m) == (axis, "length")], (0.0, math.inf))


def _parts(comparison: GroupComparison, axis: str, panel: Any) -> None:
    """Draw answer, format and both: a colour is a group, a dash pattern is a measure."""
    scale = scale_x(panel, comparison, axis)
    for label, look in looks(comparison).items():
        for measure, dashes in STYLES.items():
            curve = comparison.curves.get((label, axis, measure))
            if curve is not None:
                style = {"color": look.color, "marker": look.marker, "markersize": 3.5, "markevery": every(curve)}
                panel.plot(curve.x / scale, curve.mean, linestyle=dashes, linewidth=1.3, **style)
    drawn = {measure for _, known, measure in comparison.curves if known == axis}
    for measure, dashes in STYLES.items():
        if measure not in drawn:
            continue
        panel.plot([], [], color="#555555", linestyle=dashes, label=measure.replace("_", " "))
    scale_of_shares(panel, "held-out rollouts")
    panel.legend(fontsize=7, frameon=False, loc="best")


def _allocation(comparison: GroupComparison, panel: Any) -> None:
    places = np.arange(len(BINS))
    shown = [label for label in looks(comparison) if label in comparison.allocation]
    for number, label in enumerate(shown):
        look, counts = looks(comparison)[label], comparison.allocation[label]
        known = [place for place in places if counts[place] is not None]
        pairs = [(c.mean, NORMAL * c.standard_error) for c in counts if c is not None]  # none if seeds share no bin
        means, errors = np.array(pairs).reshape(-1, 2).T
        shift = 0.08 * (number - (len(shown) - 1) / 2)  # so that error bars do not cover each other
        panel.errorbar(
            np.array(known) + shift, means, yerr=np.nan_to_num(errors), capsize=2, linewidth=1.3, **look.style
        )
    panel.set_xticks(places, BINS)
    panel.set_xlabel("pass rate of the prompt in that step (%)")
    panel.set_ylabel("rollouts of a prompt")
    panel.set_xlim(-0.5, len(BINS) - 0.5)
    panel.set_ylim(bottom=0)
    panel.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def _handles(comparison: GroupComparison) -> list[Any]:
    """The groups and the bands for the legend below all panels."""
    handles: list[Any] = []
    for group in comparison.groups:
        look = looks(comparison)[group.label]
        seeds = "mean" if group.seeds is None else f"{group.seeds} seed{'s' * (group.seeds != 1)}"
        baseline = ", baseline" * (group.label == comparison.baseline and len(comparison.groups) > 1)
        handles.append(Line2D([], [], label=f"{short(group.label)} ({seeds}{baseline})", **look.style))
    if any(np.isfinite(curve.low).all() for curve in comparison.curves.values()):
        bands = (("mean ± 1.96 standard errors", DARKNESS[0]), ("95% interval (Student's t)", DARKNESS[1]))
        handles += [Patch(color="#000000", alpha=alpha, linewidth=0, label=label) for label, alpha in bands]
    return handles
