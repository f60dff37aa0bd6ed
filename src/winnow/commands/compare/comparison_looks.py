"""The look of a comparison's panels: a style per group, bands, and scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from winnow.commands.compare.comparison import GroupComparison
from winnow.commands.compare.mean_curve import NORMAL, MeanCurve
from winnow.view.drawing import EngFormatter, MaxNLocator
from winnow.view.text import one_line

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
