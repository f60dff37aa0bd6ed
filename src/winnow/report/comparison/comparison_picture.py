"""A comparison as a picture for a paper: accuracy by time and tokens, length, format, allocation; PNG and SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from winnow.report.comparison.compared import GroupComparison
from winnow.report.comparison.mean_curve import NORMAL, MeanCurve
from winnow.report.comparison.pass_rate_counts import BINS
from winnow.report.comparison.speed_up import SHARE, SpeedUp
from winnow.report.drawing import (
    EngFormatter,
    Figure,
    Line2D,
    MaxNLocator,
    Patch,
    new_figure,
    picture,
    scale_of_shares,
)
from winnow.report.text import one_line

# The baseline is black; then Okabe and Ito's colours. Dashes and markers tell groups apart without any colour.
COLORS = ("#000000", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ("-", (0, (6, 1.5)), (0, (4, 1, 1, 1)), (0, (1, 1)), (0, (8, 1, 1, 1, 1, 1)), (0, (3, 2)), (0, (2, 0.6)))
MARKERS = "osD^vPX"
DARKNESS = 0.2, 0.08  # of the bands of 1.96 standard errors, and of Student's t around it
MARKS = 8  # markers on a line, about
MOST_TOLD = 6  # speed-ups in a panel; the table has all
LONGEST = 44  # characters of a label
STYLES = {"answer": "-", "formatted": (0, (1, 1)), "correct_and_formatted": (0, (5, 2))}  # where colour means the group
CLOCKS = ((7200.0, 3600.0, "hours"), (180.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))  # from so many seconds on

NAMES = {
    "seconds": "training time",
    "tokens_generated": "tokens generated",
    "tokens_trained": "tokens trained on",
    "steps": "training steps",
}

Draw = Callable[[Any], None]


class Look(NamedTuple):
    """What a group is drawn in."""

    color: str
    dashes: Any
    marker: str

    @property
    def style(self) -> dict[str, Any]:
        """As matplotlib takes it."""
        return {"color": self.color, "linestyle": self.dashes, "marker": self.marker, "markersize": 4}


def pictures(found: GroupComparison) -> dict[str, bytes]:
    """{file: its bytes} of comparison.png and comparison.svg."""
    figure = draw_comparison(found)
    return {name: picture(figure, Path(name), dpi=200) for name in ("comparison.png", "comparison.svg")}


def draw_comparison(found: GroupComparison) -> Figure:
    """A panel for everything that is known of any group."""
    panels = list(_panels(found))
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = -(-len(panels) // columns)
    handles = _handles(found)
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


def _panels(found: GroupComparison) -> Iterator[Draw]:
    axes = [axis for axis in found.axes if axis != "steps"] or ["steps"]
    yield from (partial(_accuracy, found, axis) for axis in axes)
    known = {measure for _, _, measure in found.curves}

    def most(*measures: str) -> str:
        """The axis over which most of these are known."""
        return max(
            (*axes, "steps"), key=lambda axis: sum((a, m in measures) == (axis, True) for _, a, m in found.curves)
        )

    if "length" in known:
        yield partial(_length, found, most("length"))
    if known & {"formatted", "correct_and_formatted"}:
        yield partial(_parts, found, most("formatted", "correct_and_formatted"))
    if found.allocation:
        yield partial(_allocation, found)


def _accuracy(found: GroupComparison, axis: str, panel: Any) -> None:
    """With both bands, the level that is to be reached, and a ring where each group first does."""
    scale = _scale_x(panel, found, axis)
    for label, look in looks(found).items():
        curve = found.curves.get((label, axis, "accuracy"))
        if curve is not None:
            _band(panel, curve, look, scale)
    rows = [row for row in found.speed_ups if row.axis == axis and row.share == SHARE]
    for row in rows[:1]:
        panel.axhline(row.whole.level, color="#777777", linewidth=0.8, linestyle=":", zorder=1)
    for row in rows:
        for label, x in ((found.baseline, row.whole.baseline), (row.group, row.whole.other)):
            if x is not None:
                y = found.curves[label, axis, "accuracy"]
                ring = {"s": 90, "facecolors": "none", "edgecolors": looks(found)[label].color, "linewidths": 1.2}
                panel.scatter([x / scale], [np.interp(x, y.x, y.mean)], zorder=4, **ring)
    scale_of_shares(panel, "held-out accuracy")
    _scale_y(panel, [c for (_, a, m), c in found.curves.items() if (a, m) == (axis, "accuracy")], (0.0, 1.0))
    if 0 < len(rows) <= MOST_TOLD:
        _told_speed_ups(panel, {row.group: _in_words(row.whole) for row in rows}, looks(found))


def _in_words(found: SpeedUp) -> str:
    if found.ratio is not None:
        return f"{found.ratio:.2f}x"
    if found.baseline is None:
        return "the baseline never does"
    return "not as far as it was trained" if found.ended_before else "never reached"


def _told_speed_ups(panel: Any, told: Mapping[str, str], of: Mapping[str, Look]) -> None:
    """Where they cover least."""
    marks = [
        Line2D(
            [],
            [],
            color=of[label].color,
            marker=of[label].marker,
            markersize=4,
            linestyle="none",
            label=f"{_short(label, 26)}: {text}",
        )
        for label, text in told.items()
    ]
    box = {"fontsize": 7, "title_fontsize": 7, "handlelength": 0.8, "labelspacing": 0.3, "edgecolor": "none"}
    title = f"{SHARE:.0%} of the baseline's best, sooner by"
    panel.legend(handles=marks, title=title, loc="best", framealpha=0.75, alignment="left", **box)


def _length(found: GroupComparison, axis: str, panel: Any) -> None:
    scale = _scale_x(panel, found, axis)
    for label, look in looks(found).items():
        curve = found.curves.get((label, axis, "length"))
        if curve is not None:
            _band(panel, curve, look, scale)
    panel.set_ylabel("mean completion length (tokens)")
    _scale_y(panel, [c for (_, a, m), c in found.curves.items() if (a, m) == (axis, "length")], (0.0, math.inf))


def _parts(found: GroupComparison, axis: str, panel: Any) -> None:
    """Answer, format and both: a colour is a group, dashes are what is measured."""
    scale = _scale_x(panel, found, axis)
    for label, look in looks(found).items():
        for measure, dashes in STYLES.items():
            curve = found.curves.get((label, axis, measure))
            if curve is not None:
                style = {"color": look.color, "marker": look.marker, "markersize": 3.5, "markevery": _every(curve)}
                panel.plot(curve.x / scale, curve.mean, linestyle=dashes, linewidth=1.3, **style)
    drawn = {measure for _, known, measure in found.curves if known == axis}
    for measure, dashes in STYLES.items():
        if measure not in drawn:
            continue
        panel.plot([], [], color="#555555", linestyle=dashes, label=measure.replace("_", " "))
    scale_of_shares(panel, "held-out rollouts")
    panel.legend(fontsize=7, frameon=False, loc="best")


def _allocation(found: GroupComparison, panel: Any) -> None:
    places = np.arange(len(BINS))
    shown = [label for label in looks(found) if label in found.allocation]
    for number, label in enumerate(shown):
        look, counts = looks(found)[label], found.allocation[label].counts
        there = [place for place in places if counts[place] is not None]
        means, errors = np.array([(c.mean, NORMAL * c.standard_error) for c in counts if c is not None]).T
        shift = 0.08 * (number - (len(shown) - 1) / 2)  # so that error bars do not cover each other
        panel.errorbar(
            np.array(there) + shift, means, yerr=np.nan_to_num(errors), capsize=2, linewidth=1.3, **look.style
        )
    panel.set_xticks(places, BINS)
    panel.set_xlabel("pass rate of the prompt in that step (%)")
    panel.set_ylabel("rollouts of a prompt")
    panel.set_xlim(-0.5, len(BINS) - 0.5)
    panel.set_ylim(bottom=0)
    panel.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def _band(panel: Any, curve: MeanCurve, look: Look, scale: float) -> None:
    """The mean, 1.96 standard errors in a darker band, Student's t interval in a lighter one."""
    x, error = curve.x / scale, NORMAL * curve.standard_error
    if np.isfinite(curve.low).all():
        panel.fill_between(x, curve.low, curve.high, color=look.color, alpha=DARKNESS[1], linewidth=0)
        panel.fill_between(x, curve.mean - error, curve.mean + error, color=look.color, alpha=DARKNESS[0], linewidth=0)
    panel.plot(x, curve.mean, linewidth=1.4, markevery=_every(curve), zorder=3, **look.style)


def _every(curve: MeanCurve) -> int:
    return max(1, round(len(curve.x) / MARKS))


def _scale_y(panel: Any, curves: Sequence[MeanCurve], possible: tuple[float, float]) -> None:
    """Room for the means and 1.96 standard errors; the wider interval of two seeds may leave the panel."""
    errors = [np.nan_to_num(NORMAL * curve.standard_error) for curve in curves]
    low = min(float((curve.mean - error).min()) for curve, error in zip(curves, errors, strict=True))
    high = max(float((curve.mean + error).max()) for curve, error in zip(curves, errors, strict=True))
    room = 0.35 * (high - low) or 0.02 * (high or 1.0)
    first, last = panel.get_ylim()
    panel.set_ylim(max(first, low - room, possible[0]), min(last, high + room, possible[1]))


def _scale_x(panel: Any, found: GroupComparison, axis: str) -> float:
    """Name the x axis, and return how much of the axis is one of its units."""
    panel.xaxis.set_major_locator(MaxNLocator(nbins=6))
    if axis != "seconds":
        panel.set_xlabel(NAMES[axis])
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        return 1.0
    last = max(float(curve.x[-1]) for (_, known, _), curve in found.curves.items() if known == axis)
    _, unit, name = next(clock for clock in CLOCKS if last >= clock[0])
    panel.set_xlabel(f"{NAMES[axis]} ({name})")
    return unit


def _handles(found: GroupComparison) -> list[Any]:
    """The groups and the bands, for the legend below all panels."""
    handles: list[Any] = []
    for group in found.groups:
        look = looks(found)[group.label]
        seeds = "mean" if group.seeds is None else f"{group.seeds} seed{'s' * (group.seeds != 1)}"
        baseline = ", baseline" * (group.label == found.baseline and len(found.groups) > 1)
        handles.append(Line2D([], [], label=f"{_short(group.label)} ({seeds}{baseline})", **look.style))
    if any(np.isfinite(curve.low).all() for curve in found.curves.values()):
        bands = (("mean ± 1.96 standard errors", DARKNESS[0]), ("95% interval (Student's t)", DARKNESS[1]))
        handles += [Patch(color="#000000", alpha=alpha, linewidth=0, label=label) for label, alpha in bands]
    return handles


def looks(found: GroupComparison) -> dict[str, Look]:
    """What each group is drawn in, the baseline first."""
    labels = sorted((group.label for group in found.groups), key=lambda label: label != found.baseline)
    places = ((COLORS[i % 7], DASHES[(i + i // 7) % 7], MARKERS[(i + i // 7) % 7]) for i in range(len(labels)))
    return {label: Look(*place) for label, place in zip(labels, places, strict=True)}


def _short(label: str, limit: int = LONGEST) -> str:
    """Both ends of a long name, as what tells groups apart may stand at either. A $ is a $."""
    text, half = one_line(label), (limit - 3) // 2
    return (text if len(text) <= limit else f"{text[:half]}...{text[-half:]}").replace("$", r"\$")
