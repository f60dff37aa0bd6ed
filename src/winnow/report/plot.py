"""A run in four panels: accuracy, completion length, where the signal goes, and what the tokens bought; with a value
model in two more: what its values explain, and what they are beside the returns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from winnow.errors import DataError
from winnow.report.drawing import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    EngFormatter,
    Figure,
    MaxNLocator,
    new_figure,
    save_figure,
    scale_of_shares,
)
from winnow.report.summary import Row, policy_is_held, training_rows
from winnow.report.text import one_line, shorten

LARGEST = 1e15  # of a number that is drawn
LONGEST = 110  # characters of a title's line
VALUED = ("critic/explained_variance", "critic/loss")
LEAST_EXPLAINED = -1.0  # what is below is drawn there: a value model may begin anywhere
SHARES = (-0.03, 1.03)  # the ends of an axis of shares


def plot(rows: Sequence[Row], path: Path, *, title: str, subtitle: str = "") -> None:
    """Write the picture, as PNG or what the suffix says, in the place of an older one: a link is not written through.

    Raises DataError for a run without a step, or a bad path.
    """
    save_figure(draw(rows, title=title, subtitle=subtitle), path)


def draw(rows: Sequence[Row], *, title: str, subtitle: str = "") -> Figure:
    """The picture. `rows` are in step order. Raises DataError for a run without a step."""
    steps = training_rows(rows)
    if not steps:
        raise DataError("the run has not finished a step yet: there is nothing to plot")
    valued = any(name in row for row in steps for name in VALUED)
    figure = new_figure(11, 10.5 if valued else 7.5)
    lines = [shorten(one_line(text), LONGEST) for text in (title, subtitle) if text]
    figure.suptitle("\n".join(lines), parse_math=False, fontsize=11)  # a $ in a name is a $
    panels = list(figure.subplots(3 if valued else 2, 2).flat)
    _accuracy(panels[0], steps, rows)
    _length(panels[1], steps)
    _signal(panels[2], steps)
    _budget(panels[3], steps, rows)
    if valued:
        _explained(panels[4], steps)
        _values(panels[5], steps)
    for panel in [*panels[:3], *panels[4:]]:
        panel.set_xlabel("training step")
        panel.set_xlim(*_around(rows[0]["step"], rows[-1]["step"]))
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure


def _accuracy(panel: Any, steps: Sequence[Row], rows: Sequence[Row]) -> None:
    panel.set_title("accuracy")
    x = _column(steps, "step")
    panel.plot(x, _column(steps, "reward/accuracy"), color=BLUE, label="training", **_marks(steps))
    _held_out(panel, rows, {row["step"]: row["step"] for row in rows})
    _share(panel, "correct")
    beside = None
    if any(abs(row.get("reward/mean", 0.0) - row.get("reward/accuracy", 0.0)) > 1e-9 for row in steps):
        beside = _second(panel, "mean reward", PURPLE)
        rewards = _column(steps, "reward/mean")
        beside.plot(x, rewards, "-.", color=PURPLE, label="mean reward", **_marks(steps))
        if all(0 <= reward <= 1 for reward in rewards):
            beside.set_ylim(*SHARES)
    _legend(panel, beside)


def _length(panel: Any, steps: Sequence[Row]) -> None:
    panel.set_title("completion length")
    x = _column(steps, "step")
    panel.plot(x, _column(steps, "rollout/length_max"), ":", color=GREY, label="longest", **_marks(steps))
    panel.plot(x, _column(steps, "rollout/length_mean"), color=BLUE, label="mean", **_marks(steps))
    panel.set_ylabel("tokens")
    panel.margins(y=0.1)
    panel.set_ylim(bottom=0)
    beside = _second(panel, "cut off at max_new_tokens", ORANGE)
    beside.plot(x, _column(steps, "rollout/truncated"), "--", color=ORANGE, label="cut off", **_marks(steps))
    _share(beside, "cut off at max_new_tokens")
    _legend(panel, beside)


def _signal(panel: Any, steps: Sequence[Row]) -> None:
    panel.set_title("signal")
    x = _column(steps, "step")
    for label, part, whole, style, color in (
        ("flat groups", "group/flat", "group/count", "--", ORANGE),
        ("rollouts kept", "select/kept", "budget/rollouts", "-", GREEN),
        ("rollouts trained on", "select/trained", "budget/rollouts", "-.", BLUE),
    ):
        shares = [_ratio(*pair) for pair in zip(_column(steps, part), _column(steps, whole), strict=True)]
        panel.plot(x, shares, style, color=color, label=label, **_marks(steps))
    _share(panel, "share of groups, of rollouts")
    _legend(panel)


def _budget(panel: Any, steps: Sequence[Row], rows: Sequence[Row]) -> None:
    """Tokens against accuracy: held out where it was measured, else in training."""
    sampled, probed = (_column(rows, f"budget/{name}") for name in ("tokens_generated", "probe_tokens"))
    *before, total = accumulate(np.nan_to_num(sampled) + np.nan_to_num(probed), initial=0.0)
    spent = dict(zip(_column(rows, "step"), before, strict=True))
    evaluated = _held_out(panel, rows, spent)
    if not evaluated:
        label = "training (no evaluation yet)"
        x = [spent[row["step"]] for row in steps]
        panel.plot(x, _column(steps, "reward/accuracy"), color=BLUE, label=label, **_marks(steps))
    panel.set_title("budget: what the tokens bought")
    panel.set_xlabel("tokens generated so far" + ", probes included" * any("budget/probe_tokens" in r for r in rows))
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.set_xlim(*_around(0.0, total))
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    _share(panel, "correct, held out" if evaluated else "correct")
    _legend(panel)


def _explained(panel: Any, steps: Sequence[Row]) -> None:
    """What the values know of the returns, beside the loss by which they learn; and steps in which they alone do."""
    panel.set_title("value model")
    x, explained = _column(steps, "step"), _column(steps, "critic/explained_variance")
    drawn = np.maximum(explained, LEAST_EXPLAINED)  # NaN stays
    panel.axhline(0.0, color=GREY, linewidth=0.8)
    panel.plot(x, drawn, color=BLUE, label="explained variance", **_marks(steps))
    panel.set_ylim(min([0.0, *drawn[~np.isnan(drawn)]]) + SHARES[0], SHARES[1])
    panel.set_ylabel("explained variance" + " (-1: or below)" * bool(np.any(drawn > explained)))
    held = [row["step"] for row in takewhile(policy_is_held, steps)]
    if held:
        panel.axvspan(held[0] - 0.5, held[-1] + 0.5, color=GREY, alpha=0.2, linewidth=0, label="policy held")
    beside = None
    if any("critic/loss" in row for row in steps):
        beside = _second(panel, "value loss", ORANGE)
        beside.plot(x, _column(steps, "critic/loss"), "--", color=ORANGE, label="value loss", **_marks(steps))
        beside.set_ylim(bottom=0)
    _legend(panel, beside)


def _values(panel: Any, steps: Sequence[Row]) -> None:
    panel.set_title("values and returns")
    x = np.array(_column(steps, "step"))
    mean, spread = (np.array(_column(steps, f"critic/return_{name}")) for name in ("mean", "std"))
    if any("critic/return_mean" in row for row in steps):
        panel.fill_between(x, mean - spread, mean + spread, color=GREEN, alpha=0.15, linewidth=0, label="± 1 s.d.")
        panel.plot(x, mean, "--", color=GREEN, label="mean return", **_marks(steps))
    panel.plot(x, _column(steps, "critic/value_mean"), color=BLUE, label="mean value", **_marks(steps))
    panel.set_ylabel("reward to come, mean over tokens")
    _legend(panel)


def _held_out(panel: Any, rows: Sequence[Row], x: dict[float, float]) -> bool:
    """Draw the evaluations at `x` of their step; False where there is none."""
    sampled = [row for row in rows if "eval/accuracy_sampled" in row]
    if sampled:
        panel.errorbar(
            [x[row["step"]] for row in sampled],
            _column(sampled, "eval/accuracy_sampled"),
            yerr=np.abs(_column(sampled, "eval/accuracy_sampled_sem")),
            color=ORANGE,
            marker="o",
            capsize=3,
            label="held out, sampled (± 1 s.e.)",
        )
    greedy = [row for row in rows if "eval/accuracy_greedy" in row]
    if greedy:
        places = [x[row["step"]] for row in greedy]
        panel.plot(places, _column(greedy, "eval/accuracy_greedy"), "s--", color=GREEN, label="held out, greedy")
    return bool(sampled or greedy)


def _share(panel: Any, label: str) -> None:
    scale_of_shares(panel, label)
    panel.set_ylim(*SHARES)


def _second(panel: Any, label: str, color: str) -> Any:
    """A scale of its own at the right, in the colour of its line."""
    beside = panel.twinx()
    beside.set_ylabel(label, color=color)
    beside.tick_params(axis="y", colors=color)
    return beside


def _legend(panel: Any, beside: Any = None) -> None:
    """One legend for both scales, above the panel, where it covers no line."""
    panel.grid(alpha=0.3)
    handles = [handle for axes in (panel, beside) if axes for handle in axes.get_legend_handles_labels()[0]]
    panel.set_title(panel.get_title(), pad=22)
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 0.99), "ncols": len(handles)}
    panel.legend(handles=handles, fontsize=8, frameon=False, columnspacing=1.2, **place)


def _around(first: float, last: float) -> tuple[float, float]:
    """The ends of an axis from `first` to `last`, with room for a marker."""
    room = 0.04 * (last - first) or 0.5
    return first - room, last + room


def _column(rows: Sequence[Row], name: str) -> list[float]:
    """One metric of every row; NaN, which leaves a gap, where a row lacks it or no axis could show it."""
    return [value if abs(value := row.get(name, math.nan)) < LARGEST else math.nan for row in rows]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _marks(steps: Sequence[Row]) -> dict[str, Any]:
    """A line through a single step would be invisible."""
    return {"marker": "o"} if len(steps) < 3 else {}
