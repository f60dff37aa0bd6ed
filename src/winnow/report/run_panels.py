"""What is drawn of a run, as plain data: accuracy, completion length, where the signal goes, what the tokens bought;
with a value model also what its values explain, and what they are beside the returns.

`winnow plot` draws these panels with matplotlib, the page of `winnow report` in a browser.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Literal

import numpy as np

from winnow.metrics import of_prompts
from winnow.report.run_changes import EVALUATIONS, Evaluations
from winnow.report.summary import LARGEST, Row, policy_is_held, training_rows

VALUED = ("critic/explained_variance", "critic/loss")
LEAST_EXPLAINED = -1.0  # what is below is drawn there: a value model may begin anywhere
SHARES = (-0.03, 1.03)  # the ends of an axis of shares
STEPS = "training step"

Color = Literal["blue", "orange", "green", "purple", "grey"]
Style = Literal["solid", "dashed", "dotted", "dashdot"]
Ends = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeries:
    """A line. NaN is a gap in it."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    color: Color
    style: Style = "solid"
    axis: Literal[1, 2] = 1  # 2: the scale at the right
    marker: Literal["circle", "square"] | None = None  # at each point, which was measured alone
    error: tuple[float, ...] | None = None  # one standard error, up and down
    band: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # one standard deviation: its ends at each x


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A shaded part of the x axis."""

    label: str
    first: float
    last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPanel:
    """Lines over one x axis, with one or two scales. Values of a scale in percent are shares, 0 to 1."""

    title: str
    x_label: str = STEPS
    y_label: str
    y2_label: str | None = None
    percent: bool = False
    percent2: bool = False
    x_range: Ends
    y_range: Ends | None = None
    y2_range: Ends | None = None
    zero: bool = False  # whether 0 is a line of its own
    series: tuple[RunSeries, ...]
    spans: tuple[Span, ...] = ()


def panels(rows: Sequence[Row], evaluated: Evaluations = EVALUATIONS) -> list[RunPanel]:
    """Four panels, six of a run with a value model; none of a run without a step. `rows` are in step order; of the
    evaluations in them those are drawn that were made alike.
    """
    steps = training_rows(rows)
    if not steps:
        return []
    accuracy, budget = _accuracy(steps, rows, evaluated), _budget(steps, rows, evaluated)
    found = [accuracy, _length(steps, rows), _signal(steps, rows), budget]
    if any(name in row for row in steps for name in VALUED):
        found += [_explained(steps, rows), _values(steps, rows)]
    return found


def _accuracy(steps: Sequence[Row], rows: Sequence[Row], evaluated: Evaluations) -> RunPanel:
    accuracy, reward = (of_prompts(name, steps) for name in ("reward/accuracy", "reward/mean"))
    lines = [
        _line(steps, accuracy, "training", "blue"),
        *_measured(rows, {r["step"]: r["step"] for r in rows}, evaluated),
    ]
    beside: list[RunSeries] = []
    if any(abs(row.get(reward, 0.0) - row.get(accuracy, 0.0)) > 1e-9 for row in steps):
        beside = [_line(steps, reward, "mean reward", "purple", "dashdot", axis=2)]
    return RunPanel(
        title="accuracy",
        y_label="correct (%)",
        y2_label="mean reward" if beside else None,
        percent=True,
        x_range=_steps_of(rows),
        y_range=SHARES,
        y2_range=SHARES if beside and all(0 <= reward <= 1 for reward in beside[0].y) else None,
        series=(*lines, *beside),
    )


def _length(steps: Sequence[Row], rows: Sequence[Row]) -> RunPanel:
    lengths = (
        _line(steps, "rollout/length_max", "longest", "grey", "dotted"),
        _line(steps, "rollout/length_mean", "mean", "blue"),
    )
    return RunPanel(
        title="completion length",
        y_label="tokens",
        y2_label="cut off at max_new_tokens (%)",
        percent2=True,
        x_range=_steps_of(rows),
        y_range=_from_0(lengths, room=0.1),
        y2_range=SHARES,
        series=(*lengths, _line(steps, "rollout/truncated", "cut off", "orange", "dashed", axis=2)),
    )


def _signal(steps: Sequence[Row], rows: Sequence[Row]) -> RunPanel:
    shares = (
        _share(steps, "group/flat", "group/count", "flat groups", "orange", "dashed"),
        _share(steps, "select/kept", "budget/rollouts", "rollouts kept", "green", "solid"),
        _share(steps, "select/trained", "budget/rollouts", "rollouts trained on", "blue", "dashdot"),
    )
    label = "share of groups, of rollouts (%)"
    return RunPanel(title="signal", y_label=label, percent=True, x_range=_steps_of(rows), y_range=SHARES, series=shares)


def _budget(steps: Sequence[Row], rows: Sequence[Row], evaluated: Evaluations) -> RunPanel:
    """Tokens against accuracy: as it was evaluated where it was, else in training."""
    sampled, probed = (_column(rows, f"budget/{name}") for name in ("tokens_generated", "probe_tokens"))
    *before, total = accumulate(np.nan_to_num(sampled) + np.nan_to_num(probed), initial=0.0)
    spent = dict(zip(_column(rows, "step"), map(float, before), strict=True))
    measured = _measured(rows, spent, evaluated)
    label = "training (no evaluation yet)"
    accuracy = of_prompts("reward/accuracy", steps)
    training = _line(steps, accuracy, label, "blue", x=[spent[row["step"]] for row in steps])
    return RunPanel(
        title="budget: what the tokens bought",
        x_label="tokens generated so far" + ", probes included" * any("budget/probe_tokens" in r for r in rows),
        y_label=f"correct, {evaluated.of} (%)" if measured else "correct (%)",
        percent=True,
        x_range=(0.0, float(total)),
        y_range=SHARES,
        series=tuple(measured) or (training,),
    )


def _explained(steps: Sequence[Row], rows: Sequence[Row]) -> RunPanel:
    """What the values know of the returns, beside the loss by which they learn; and steps in which they alone do."""
    explained = np.array(_column(steps, VALUED[0]))
    drawn = np.maximum(explained, LEAST_EXPLAINED)  # NaN stays
    line = RunSeries(label="explained variance", x=_x(steps), y=tuple(drawn.tolist()), color="blue")
    beside = [_line(steps, VALUED[1], "value loss", "orange", "dashed", axis=2)] if _has(steps, VALUED[1]) else []
    held = [row["step"] for row in takewhile(policy_is_held, steps)]
    return RunPanel(
        title="value model",
        y_label="explained variance" + " (-1: or below)" * bool(np.any(drawn > explained)),
        y2_label="value loss" if beside else None,
        x_range=_steps_of(rows),
        y_range=(min([0.0, *drawn[~np.isnan(drawn)].tolist()]) + SHARES[0], SHARES[1]),
        y2_range=_from_0(beside, room=0.05) if beside else None,
        zero=True,
        series=(line, *beside),
        spans=(Span(label="policy held", first=held[0] - 0.5, last=held[-1] + 0.5),) if held else (),
    )


def _values(steps: Sequence[Row], rows: Sequence[Row]) -> RunPanel:
    returns = []
    if _has(steps, "critic/return_mean"):
        mean, spread = (np.array(_column(steps, f"critic/return_{name}")) for name in ("mean", "std"))
        band = tuple((mean - spread).tolist()), tuple((mean + spread).tolist())
        y = tuple(mean.tolist())
        returns = [RunSeries(label="mean return", x=_x(steps), y=y, color="green", style="dashed", band=band)]
    return RunPanel(
        title="values and returns",
        y_label="reward to come, mean over tokens",
        x_range=_steps_of(rows),
        series=(*returns, _line(steps, "critic/value_mean", "mean value", "blue")),
    )


def _measured(rows: Sequence[Row], x: dict[float, float], evaluated: Evaluations) -> list[RunSeries]:
    """The evaluations at `x` of their step; none where there is none."""
    found, rows = [], evaluated.rows(rows)
    since = f", from step {evaluated.since} on" * bool(evaluated.since)
    if sampled := [row for row in rows if "eval/accuracy_sampled" in row]:
        found.append(
            RunSeries(
                label=f"{evaluated.of}, sampled (± 1 s.e.){since}",
                x=tuple(x[row["step"]] for row in sampled),
                y=tuple(_column(sampled, "eval/accuracy_sampled")),
                error=tuple(abs(error) for error in _column(sampled, "eval/accuracy_sampled_sem")),
                color="orange",
                marker="circle",
            )
        )
    if greedy := [row for row in rows if "eval/accuracy_greedy" in row]:
        found.append(
            RunSeries(
                label=f"{evaluated.of}, greedy{since}",
                x=tuple(x[row["step"]] for row in greedy),
                y=tuple(_column(greedy, "eval/accuracy_greedy")),
                color="green",
                style="dashed",
                marker="square",
            )
        )
    return found


def _line(
    steps: Sequence[Row],
    name: str,
    label: str,
    color: Color,
    style: Style = "solid",
    *,
    axis: Literal[1, 2] = 1,
    x: Sequence[float] | None = None,
) -> RunSeries:
    places = _x(steps) if x is None else tuple(x)
    return RunSeries(label=label, x=places, y=tuple(_column(steps, name)), color=color, style=style, axis=axis)


def _share(steps: Sequence[Row], part: str, whole: str, label: str, color: Color, style: Style) -> RunSeries:
    pairs = zip(_column(steps, part), _column(steps, whole), strict=True)
    return RunSeries(
        label=label, x=_x(steps), y=tuple(a / b if b else math.nan for a, b in pairs), color=color, style=style
    )


def _x(steps: Sequence[Row]) -> tuple[float, ...]:
    return tuple(_column(steps, "step"))


def _steps_of(rows: Sequence[Row]) -> Ends:
    return rows[0]["step"], rows[-1]["step"]


def _from_0(lines: Sequence[RunSeries], *, room: float) -> Ends:
    """The ends of a scale from 0 on, with a share of what the lines span as room above them."""
    known = [y for line in lines for y in line.y if not math.isnan(y)]
    top = max(known) + room * (max(known) - min(known)) if known else 0.0
    return 0.0, top if top > 0 else 1.0


def _has(steps: Sequence[Row], name: str) -> bool:
    return any(name in row for row in steps)


def _column(rows: Sequence[Row], name: str) -> list[float]:
    """One metric of every row; NaN, which leaves a gap, where a row lacks it or no axis could show it."""
    return [value if abs(value := row.get(name, math.nan)) < LARGEST else math.nan for row in rows]
