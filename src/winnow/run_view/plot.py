"""A run's panels (panels.py) as a picture."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from winnow.run_view.configuration import EVALUATIONS, Evaluations
from winnow.run_view.panels import STEPS, Ends, RunPanel, RunSeries, panels
from winnow.run_view.summary import Row
from winnow.view.drawing import COLORS, EngFormatter, Figure, MaxNLocator, new_figure, scale_of_shares
from winnow.view.text import one_line, shorten

LONGEST = 110  # characters of a title's line
MARKERS = {"circle": "o", "square": "s"}


def draw(rows: Sequence[Row], *, title: str, subtitle: str = "", evaluated: Evaluations = EVALUATIONS) -> Figure:
    """The picture of `rows`, which are in step order; at least one is of a finished step."""
    drawn = panels(rows, evaluated)
    columns = 3 if len(drawn) > 4 else 2
    lines_of_panels = -(-len(drawn) // columns)
    figure = new_figure(5.5 * columns, 3.1 * lines_of_panels + 1.0)
    lines = [shorten(one_line(text), LONGEST) for text in (title, subtitle) if text]
    figure.suptitle("\n".join(lines), parse_math=False, fontsize=11)  # a name may contain "$"
    places = figure.subplots(lines_of_panels, columns, squeeze=False).flat
    for axes, panel in itertools.zip_longest(places, drawn):
        if panel is None:
            axes.remove()
        else:
            _panel(axes, panel)
    return figure


def _panel(axes: Any, panel: RunPanel) -> None:
    axes.set_title(panel.title, pad=22)
    beside = axes.twinx() if panel.y2_label else None
    if panel.zero:
        axes.axhline(0.0, color=COLORS["grey"], linewidth=0.8)
    for series in panel.series:
        _draw(beside if series.axis == 2 else axes, series)
    for span in panel.spans:
        axes.axvspan(span.first, span.last, color=COLORS["grey"], alpha=0.2, linewidth=0, label=span.label)
    _scale(axes, panel.y_label, panel.percent, panel.y_range)
    if beside and panel.y2_label:
        _scale(beside, panel.y2_label, panel.percent2, panel.y2_range)
        color = next(COLORS[series.color] for series in panel.series if series.axis == 2)
        beside.yaxis.label.set_color(color)
        beside.tick_params(axis="y", colors=color)
    axes.set_xlabel(panel.x_label)
    first, last = panel.x_range
    room = 0.04 * (last - first) or 0.5  # for a marker
    axes.set_xlim(first - room, last + room)
    if panel.x_label != STEPS:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(alpha=0.3)
    # One legend for both scales above the panel, where it covers no line
    handles = [handle for scale in (axes, beside) if scale for handle in scale.get_legend_handles_labels()[0]]
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 0.99), "ncols": len(handles)}
    axes.legend(handles=handles, fontsize=8, frameon=False, columnspacing=1.2, **place)


def _draw(axes: Any, series: RunSeries) -> None:
    color = COLORS[series.color]
    look = {"color": color, "label": series.label, "linestyle": series.style}
    if series.marker or len(series.x) < 3:  # a line through a single step would be invisible
        look["marker"] = MARKERS[series.marker or "circle"]
    if series.band:
        axes.fill_between(series.x, *series.band, color=color, alpha=0.15, linewidth=0, label=series.band_label)
    if series.error:
        axes.errorbar(series.x, series.y, yerr=series.error, capsize=3, **look)
    else:
        axes.plot(series.x, series.y, **look)


def _scale(axes: Any, label: str, percent: bool, ends: Ends | None) -> None:
    if percent:
        scale_of_shares(axes, label.removesuffix(" (%)"))
    else:
        axes.set_ylabel(label)
    if ends:
        axes.set_ylim(*ends)
