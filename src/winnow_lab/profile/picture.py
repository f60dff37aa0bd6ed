"""A profile as a picture: curves over numbers of rollouts in panels. Crosses mark the numbers that have no value."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from winnow.view.drawing import COLORS, FixedLocator, FuncFormatter, LogLocator, NullLocator, new_figure, save_figure
from winnow.view.text import one_line, shorten
from winnow_lab.profile.measurement import Profile
from winnow_lab.profile.points import Ending, PointResult, Way, measured, points_of, saturation, speed_up, steps

LOOKS: tuple[dict[str, Any], ...] = (  # markers and dashes differ as well as colours
    {"color": COLORS["blue"], "marker": "o", "linestyle": "-"},
    {"color": COLORS["orange"], "marker": "s", "linestyle": "--"},
    {"color": COLORS["green"], "marker": "^", "linestyle": "-."},
    {"color": COLORS["purple"], "marker": "D", "linestyle": ":"},
)
REFERENCE: dict[str, Any] = {"color": COLORS["grey"], "linewidth": 0.8, "linestyle": (0, (4, 3))}
SIZE, DOTS = (7.2, 5.6), 200  # inches, across two columns of a paper; dots per inch
LONGEST = 110  # characters of a title's line
TICKS = 8  # on an axis of rollouts, at most
NO_FIT = "does not fit"
NO_VALUE: dict[Ending, str] = {"out of memory": NO_FIT, "out of time": "takes too long", "failed": "failed"}
ROW = 0.08  # of a panel's height, for a row of crosses
MIB, GIB = 2**20, 2**30
STYLES: dict[Way, int] = {"sampling": 0, "whole": 1, "accumulated": 2, "selected": 3}  # the same style in every panel
UPDATES: dict[Way, str] = {"whole": "all at once", "accumulated": "all, accumulated", "selected": "selected"}


@dataclass(frozen=True, slots=True)
class Series:
    """Points (rollouts, value), and the numbers of rollouts without a value, by reason."""

    label: str
    points: tuple[tuple[int, float], ...]
    style: int = 0  # index into `LOOKS`
    without_value: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # reasons of `NO_VALUE`, in its order


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel with two logarithmic axes."""

    title: str
    x: str
    y: str
    curves: tuple[Series, ...]
    mark: tuple[int, str] | None = None  # a number of rollouts, and the label of a vertical line there
    level: tuple[float, str] | None = None  # a value, and the label of a horizontal line there


def draw(panels: Sequence[Panel], outputs: Sequence[Path], *, title: str, subtitle: str = "") -> None:
    """Draw four panels and write them to each path in the format of its suffix."""
    figure = new_figure(*SIZE)
    lines = [shorten(one_line(text), LONGEST) for text in (title, subtitle) if text]
    figure.suptitle("\n".join(lines), parse_math=False, fontsize=9)
    for axes, panel in zip(figure.subplots(2, 2).flat, panels, strict=True):
        _panel(axes, panel)
    for path in outputs:
        save_figure(figure, path, dpi=DOTS)


def _panel(axes: Any, panel: Panel) -> None:
    axes.set_xlabel(panel.x, fontsize=8)
    axes.set_ylabel(panel.y, fontsize=8)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3, which="major")
    for curve in panel.curves:
        x, y = [n for n, _ in curve.points], [value for _, value in curve.points]
        axes.plot(x, y, **LOOKS[curve.style], label=curve.label or None, markersize=4, linewidth=1.2)
    if panel.level is not None:
        value, words = panel.level
        axes.axhline(value, **REFERENCE)
        _words(axes, words, (0.01, value), axes.get_yaxis_transform(), COLORS["grey"], ha="left", va="bottom")
    _ticks(axes, panel.curves)
    _ends(axes, panel.curves)
    if panel.mark is not None:
        at, words = panel.mark
        axes.axvline(at, **REFERENCE)
        _words(axes, words, (at, 0.96), axes.get_xaxis_transform(), COLORS["grey"], ha="right", va="top")
    named = [curve for curve in panel.curves if curve.label]
    axes.set_title(panel.title, fontsize=9, pad=18 if named else 6, parse_math=False)
    if named:  # above the panel, where it covers nothing
        place: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 0.98), "ncols": len(named)}
        axes.legend(fontsize=7, frameon=False, columnspacing=1.2, handlelength=2.6, **place)


def _ends(axes: Any, curves: Sequence[Series]) -> None:
    """Draw crosses above the curves at the rollouts without a value: a row for each curve and reason."""
    rows = [(curve, ns, words) for curve in curves for words, ns in curve.without_value.items()]
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** (ROW * (len(rows) + 1) / (1 - ROW * (len(rows) + 1))) if rows else high)
    across = axes.get_xaxis_transform()
    for place, (curve, ns, words) in enumerate(rows):
        height, color = 1 - ROW * (place + 0.8), LOOKS[curve.style]["color"]
        axes.plot(ns, [height] * len(ns), "x", color=color, transform=across, markersize=5)
        _words(axes, words, (min(ns), height), across, color, ha="right", va="center")
        if words == NO_FIT:
            axes.axvline(min(ns), color=color, linewidth=0.8, alpha=0.5, linestyle=":")


def _words(axes: Any, words: str, at: tuple[float, float], transform: Any, color: str, *, ha: str, va: str) -> None:
    """Write words beside a point: left of it if `ha` is "right", right of it if `ha` is "left"."""
    apart = (-5 if ha == "right" else 2, 2 if va == "bottom" else 0)
    axes.annotate(words, at, xycoords=transform, xytext=apart, textcoords="offset points", ha=ha, va=va, fontsize=7,
                  color=color)  # fmt: skip


def _ticks(axes: Any, curves: Sequence[Series]) -> None:
    """Set ticks, labelled with plain numbers instead of powers. The x axis has at most `TICKS`, at numbers of rollouts
    that occur.
    """
    numbers = ((*(n for n, _ in curve.points), *itertools.chain(*curve.without_value.values())) for curve in curves)
    rollouts = sorted({n for some in numbers for n in some})
    axes.xaxis.set_major_locator(FixedLocator(rollouts[:: max(1, math.ceil(len(rollouts) / TICKS))]))
    axes.yaxis.set_major_locator(LogLocator(subs=_marks(value for curve in curves for _, value in curve.points)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _marks(values: Iterable[float]) -> tuple[float, ...]:
    """The marks within each decade; a shorter axis has more of them."""
    listed = list(values)
    span = max(listed) / min(listed) if listed else 1.0
    return (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0) if span < 4 else (1.0, 2.0, 5.0) if span < 200 else (1.0,)


def draw_profile(profile: Profile, *outputs: Path) -> None:
    """Write the picture to each path, in the format of its suffix."""
    draw(panels(profile), outputs, title=title(profile), subtitle=f"selected: {profile.selects}")


def title(profile: Profile) -> str:
    config, on = profile.config, profile.measured_on
    threads = f"{on['threads']} CPU thread{'s' * (on['threads'] > 1)}"
    where = on.get("gpu", {}).get("name") or threads
    return f"{Path(config.model.path).name} on {where}, rollouts of {config.rollout.max_new_tokens} tokens"


def panels(profile: Profile) -> list[Panel]:
    """Sampling, seconds and memory of updates, whole steps."""
    results = profile.found
    return [_sampling(results), _seconds(results), _memory(results, profile.request.memory_limit), _steps(results)]


def _sampling(results: Sequence[PointResult]) -> Panel:
    change, at = speed_up(results), saturation(results)
    note = f": {change[2]:.1f} times less per token from {change[0]} to {change[1]}" if change else ""
    return Panel(
        f"sampling{note}",
        "rollouts sampled concurrently",
        "microseconds per token",
        (_curve(results, "sampling", "", lambda one: 1e6 * one.per_token),),
        mark=None if at is None else (at, "saturated"),
    )


def _seconds(results: Sequence[PointResult]) -> Panel:
    curves = tuple(_curve(results, way, name, lambda one: one.median) for way, name in _updates(results).items())
    return Panel("update", "rollouts given to an update", "seconds", curves)


def _memory(results: Sequence[PointResult], limit: int | None) -> Panel:
    peaks = [one.peak for way in UPDATES for one in points_of(results, way) if one.peak is not None]
    unit, name = (GIB, "GiB") if max([*peaks, limit or 0], default=0) >= GIB else (MIB, "MiB")
    curves = tuple(
        _curve(results, way, label, lambda one: None if one.peak is None else one.peak / unit)
        for way, label in _updates(results).items()
    )
    level = None if limit is None else (limit / unit, "limit")
    return Panel("memory of an update", "rollouts given to an update", f"peak ({name})", curves, level=level)


def _updates(results: Sequence[PointResult]) -> dict[Way, str]:
    """The requested kinds of updates, with their labels in the picture."""
    return {way: name for way, name in UPDATES.items() if points_of(results, way)}


def _steps(results: Sequence[PointResult]) -> Panel:
    whole = steps(results)
    every = tuple((step.rollouts, step.trained_on_all) for step in whole if step.trained_on_all is not None)
    selected = tuple((s.rollouts, s.trained_on_selected) for s in whole if s.trained_on_selected is not None)
    sampling = tuple((n, one.median) for n, one in measured(results, "sampling").items())
    curves = (
        Series("sampling", sampling, style=STYLES["sampling"]),
        Series("and training on all", every, style=STYLES["accumulated"]),
        Series("on selected", selected, style=STYLES["selected"]),
    )
    return Panel("step", "rollouts sampled in a step", "seconds", tuple(curve for curve in curves if curve.points))


def _curve(
    results: Sequence[PointResult], way: Way, label: str, value: Callable[[PointResult], float | None]
) -> Series:
    values = [(n, value(one)) for n, one in measured(results, way).items()]
    others = [
        (words, tuple(one.point.rollouts for one in points_of(results, way) if one.ending == ending))
        for ending, words in NO_VALUE.items()
    ]
    known = tuple((n, y) for n, y in values if y is not None)
    return Series(label, known, STYLES[way], {words: numbers for words, numbers in others if numbers})
