"""A run in four panels: reward, accuracy in training and held out, policy loss, and the reward's range."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from winnow.errors import DataError
from winnow.report.summary import Row, column, training_rows

BLUE, ORANGE, GREEN, GREY = "#3465a4", "#ce5c00", "#4e9a06", "#888a85"


def plot(rows: Sequence[Row], path: Path, *, title: str) -> None:
    """Write the picture, as PNG or what the suffix says. Raises DataError for a run without a step, or a bad path."""
    steps = training_rows(rows)
    if not steps:
        raise DataError("the run has not finished a step yet: there is nothing to plot")
    figure = Figure(figsize=(10, 7), layout="constrained")
    FigureCanvasAgg(figure)  # draws without a display
    figure.suptitle(title)
    panels = figure.subplots(2, 2)
    _reward(panels[0, 0], steps)
    _accuracy(panels[0, 1], steps, rows)
    _loss(panels[1, 0], steps)
    _range(panels[1, 1], steps)
    for panel in panels.flat:
        panel.set_xlabel("step")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.grid(alpha=0.3)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot write the plot {path}: {error}") from error


def _reward(panel: Any, steps: Sequence[Row]) -> None:
    panel.set_title("average reward")
    panel.plot(column(steps, "step"), column(steps, "reward/mean"), color=BLUE, **_marks(steps))


def _accuracy(panel: Any, steps: Sequence[Row], rows: Sequence[Row]) -> None:
    panel.set_title("accuracy")
    panel.plot(column(steps, "step"), column(steps, "reward/accuracy"), color=BLUE, label="training", **_marks(steps))
    sampled = [row for row in rows if "eval/accuracy_sampled" in row]
    if sampled:
        panel.errorbar(
            column(sampled, "step"),
            column(sampled, "eval/accuracy_sampled"),
            yerr=[row.get("eval/accuracy_sampled_sem", 0.0) for row in sampled],
            color=ORANGE,
            marker="o",
            capsize=3,
            label="held out, sampled",
        )
    greedy = [row for row in rows if "eval/accuracy_greedy" in row]
    if greedy:
        panel.plot(
            column(greedy, "step"), column(greedy, "eval/accuracy_greedy"), "s--", color=GREEN, label="held out, greedy"
        )
    panel.set_ylim(-0.02, 1.02)
    panel.legend()


def _loss(panel: Any, steps: Sequence[Row]) -> None:
    panel.set_title("policy loss")
    panel.plot(column(steps, "step"), column(steps, "policy/loss"), color=BLUE, **_marks(steps))
    panel.axhline(0.0, color=GREY, linewidth=0.8)


def _range(panel: Any, steps: Sequence[Row]) -> None:
    panel.set_title("reward: lowest to highest, and mean")
    x = column(steps, "step")
    panel.fill_between(x, column(steps, "reward/min"), column(steps, "reward/max"), color=BLUE, alpha=0.15, linewidth=0)
    panel.plot(x, column(steps, "reward/mean"), color=BLUE, **_marks(steps))


def _marks(steps: Sequence[Row]) -> dict[str, Any]:
    """A line through a single step would be invisible."""
    return {"marker": "o"} if len(steps) < 3 else {}
