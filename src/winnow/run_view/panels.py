"""The panels of a run as plain data: accuracy, reward, completion length, policy loss, training signal, accuracy over
tokens, entropy, gradient norm, how far bfloat16 weights have followed, and KL; with a value model also its explained
variance, loss, values and returns.

`winnow plot` draws these panels with matplotlib, and the page of `winnow report` draws them in a browser. A quantity
has the same style in all panels. Its colour is for drawings of one run; with several runs, each run has one colour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from typing import Literal

import numpy as np

from winnow.alarms.history import is_held
from winnow.metrics import per_prompt_metric
from winnow.run_view.configuration import EVALUATIONS, Evaluations
from winnow.run_view.summary import Row, training_rows
from winnow.view.text import LARGEST

VALUED = ("critic/explained_variance", "critic/loss")
LEAST_EXPLAINED = -1.0  # smaller values are drawn here: an untrained value model may be far below
SHARES = (-0.03, 1.03)  # the ends of an axis of shares
STEPS = "training step"

Color = Literal["blue", "orange", "green", "purple", "grey"]
Style = Literal["solid", "dashed", "dotted", "dashdot"]
Marker = Literal["circle", "square"]
Ends = tuple[float, float]


@dataclass(frozen=True, slots=True)
class RunSeries:
    """A line. NaN makes a gap in it."""

    quantity: str
    color: Color
    style: Style = "solid"
    marker: Marker | None = None  # at each point of a quantity that is measured at some steps only
    note: str = ""  # a legend's addition to the quantity
    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()
    axis: Literal[1, 2] = 1  # 2: the right scale
    error: tuple[float, ...] | None = None  # one standard error, up and down
    band: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # (lower ends, upper ends), one at each x
    band_label: str | None = None  # the band's entry in a legend

    @property
    def label(self) -> str:
        """The line's entry in a legend."""
        return f"{self.quantity}{self.note}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A shaded part of the x axis."""

    label: str
    first: float
    last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPanel:
    """Lines over one x axis, with one or two scales. The values of a percent scale are shares from 0 to 1."""

    title: str
    x_label: str = STEPS
    y_label: str
    y2_label: str | None = None
    percent: bool = False
    percent2: bool = False
    x_range: Ends
    y_range: Ends | None = None
    y2_range: Ends | None = None
    zero: bool = False  # whether a line is drawn at 0
    series: tuple[RunSeries, ...]
    spans: tuple[Span, ...] = ()


# Lines without points
TRAINING = RunSeries("training", "blue")
MEAN_REWARD = RunSeries("mean", "blue")
MEAN_LENGTH, LONGEST = RunSeries("mean", "blue"), RunSeries("longest", "grey", "dotted")
CUT_OFF = RunSeries("cut off", "orange", "dashed")
LOSS, ENTROPY, GRADIENT = RunSeries("loss", "blue"), RunSeries("entropy", "blue"), RunSeries("norm", "blue")
FOLLOWED = RunSeries("followed", "blue")
FLAT, KEPT = RunSeries("flat groups", "orange", "dashed"), RunSeries("rollouts kept", "green", "dotted")
TRAINED = RunSeries("rollouts trained on", "blue")
DIVERGENCES = {"loss/kl": RunSeries("KL term", "blue"), "reward/kl": RunSeries("KL in the reward", "orange", "dashed")}
EXPLAINED, VALUE_LOSS = RunSeries("explained variance", "blue"), RunSeries("value loss", "orange", "dashed")
VALUE, RETURN = RunSeries("mean value", "blue"), RunSeries("mean return", "green", "dashed")


def panels(rows: Sequence[Row], evaluated: Evaluations = EVALUATIONS) -> list[RunPanel]:
    """Up to ten panels, twelve for a run with a value model, none for a run without a step. `rows` are in step order;
    `evaluated` selects the comparable evaluations in them. Panels without data are omitted.
    """
    steps = training_rows(rows)
    if not steps:
        return []
    drawn = [_accuracy(steps, rows, evaluated), *_reward(steps, rows), _length(steps, rows)]
    drawn += _of_metrics("policy loss", "loss", {"policy/loss": LOSS}, steps, rows, zero=True)
    drawn += [_signal(steps, rows), _budget(steps, rows, evaluated)]
    drawn += _of_metrics("entropy", "nats per token", {"policy/entropy": ENTROPY}, steps, rows)
    drawn += _of_metrics("gradient norm", "norm before clipping", {"policy/grad_norm": GRADIENT}, steps, rows)
    drawn += _of_metrics("weights", "move made, of the masters' move", {"policy/move_followed": FOLLOWED}, steps, rows)
    drawn += _of_metrics("KL divergence from the reference", "nats per token", DIVERGENCES, steps, rows, zero=True)
    if any(name in row for row in steps for name in VALUED):
        drawn += [_explained(steps, rows), _values(steps, rows)]
    return drawn


def _accuracy(steps: Sequence[Row], rows: Sequence[Row], evaluated: Evaluations) -> RunPanel:
    at = {row["step"]: row["step"] for row in rows}
    lines = (_line(steps, per_prompt_metric("reward/accuracy", steps), TRAINING), *_measured(rows, at, evaluated))
    label = "correct (%)"
    return RunPanel(
        title="accuracy", y_label=label, percent=True, x_range=_steps_of(rows), y_range=SHARES, series=lines
    )


def _reward(steps: Sequence[Row], rows: Sequence[Row]) -> list[RunPanel]:
    """The mean reward. Its band is one standard error if rewards are 0 or 1, else from the smallest to the largest of a
    step: between 0 and 1 that would be the whole panel.
    """
    name = per_prompt_metric("reward/mean", steps)
    if not _has(steps, name):
        return []
    mean, low, high = (_column(steps, key) for key in (name, "reward/min", "reward/max"))
    binary = {end for end in (*low, *high) if not math.isnan(end)} <= {0.0, 1.0}
    if binary:
        error = _column(steps, f"{name}_sem")
        low, high = ([m + sign * e for m, e in zip(mean, error, strict=True)] for sign in (-1, 1))
    known = any(not math.isnan(end) for end in low) and any(not math.isnan(end) for end in high)
    line = replace(
        MEAN_REWARD,
        x=_x(steps),
        y=tuple(mean),
        band=(tuple(low), tuple(high)) if known else None,
        band_label=("± 1 s.e." if binary else "minimum to maximum") if known else None,
    )
    return [RunPanel(title="reward", y_label="reward", x_range=_steps_of(rows), series=(line,))]


def _length(steps: Sequence[Row], rows: Sequence[Row]) -> RunPanel:
    lengths = (_line(steps, "rollout/length_mean", MEAN_LENGTH), _line(steps, "rollout/length_max", LONGEST))
    return RunPanel(
        title="completion length",
        y_label="tokens",
        y2_label="cut off at max_new_tokens (%)",
        percent2=True,
        x_range=_steps_of(rows),
        y_range=_from_0(lengths, room=0.1),
        y2_range=SHARES,
        series=(*lengths, _line(steps, "rollout/truncated", CUT_OFF, axis=2)),
    )


def _of_metrics(
    title: str,
    y_label: str,
    quantities: Mapping[str, RunSeries],
    steps: Sequence[Row],
    rows: Sequence[Row],
    *,
    zero: bool = False,
) -> list[RunPanel]:
    """One panel of the metrics that the rows contain; none if they contain none of them."""
    lines = tuple(_line(steps, name, quantity) for name, quantity in quantities.items() if _has(steps, name))
    return [RunPanel(title=title, y_label=y_label, x_range=_steps_of(rows), zero=zero, series=lines)] if lines else []


def _signal(steps: Sequence[Row], rows: Sequence[Row]) -> RunPanel:
    shares = (
        _share(steps, "group/flat", "group/count", FLAT),
        _share(steps, "select/trained", "budget/rollouts", TRAINED),
        _share(steps, "select/kept", "budget/rollouts", KEPT),  # last, so that it is visible over an equal line
    )
    label = "share of groups, of rollouts (%)"
    return RunPanel(title="signal", y_label=label, percent=True, x_range=_steps_of(rows), y_range=SHARES, series=shares)


def _budget(steps: Sequence[Row], rows: Sequence[Row], evaluated: Evaluations) -> RunPanel:
    """Accuracy over tokens: the evaluated accuracy if there is one, else the training accuracy."""
    sampled, probed = (_column(rows, f"budget/{name}") for name in ("tokens_generated", "probe_tokens"))
    # An evaluation comes before the tokens of its row, so it is drawn at the sum of all earlier rows
    *before, total = accumulate(np.nan_to_num(sampled) + np.nan_to_num(probed), initial=0.0)
    spent = dict(zip(_column(rows, "step"), map(float, before), strict=True))
    measured = _measured(rows, spent, evaluated)
    x = [spent[row["step"]] for row in steps]
    training = _line(steps, per_prompt_metric("reward/accuracy", steps), TRAINING, note=" (no evaluation yet)", x=x)
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
    """Explained variance of the returns and value loss. The steps at the start that trained the value model alone are
    shaded.
    """
    explained = np.array(_column(steps, VALUED[0]))
    drawn = np.maximum(explained, LEAST_EXPLAINED)  # keeps NaN
    line = replace(EXPLAINED, x=_x(steps), y=tuple(drawn.tolist()))
    beside = [_line(steps, VALUED[1], VALUE_LOSS, axis=2)] if _has(steps, VALUED[1]) else []
    held = [row["step"] for row in takewhile(is_held, steps)]
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
        returns = [replace(RETURN, x=_x(steps), y=y, band=band, band_label="± 1 s.d.")]
    return RunPanel(
        title="values and returns",
        y_label="reward to come, mean over tokens",
        x_range=_steps_of(rows),
        series=(*returns, _line(steps, "critic/value_mean", VALUE)),
    )


def _measured(rows: Sequence[Row], x: dict[float, float], evaluated: Evaluations) -> list[RunSeries]:
    """A line per mode of the evaluations, at `x[step]`; none without evaluations."""
    lines, rows = [], evaluated.rows(rows)
    since = f", from step {evaluated.since} on" * bool(evaluated.since)
    quantities = {
        "sampled": RunSeries(f"{evaluated.of}, sampled", "orange", "dashed", "circle"),
        "greedy": RunSeries(f"{evaluated.of}, greedy", "green", "dotted", "square"),
    }
    for mode, quantity in quantities.items():
        name = f"eval/accuracy_{mode}"
        seen = [row for row in rows if name in row]
        known = any(f"{name}_sem" in row for row in seen)
        error = tuple(abs(error) for error in _column(seen, f"{name}_sem")) if known else None
        note, places = " (± 1 s.e.)" * known + since, [x[row["step"]] for row in seen]
        lines += [_line(seen, name, quantity, note=note, x=places, error=error)] if seen else []
    return lines


def _line(
    steps: Sequence[Row],
    name: str,
    quantity: RunSeries,
    *,
    note: str = "",
    axis: Literal[1, 2] = 1,
    x: Sequence[float] | None = None,
    error: tuple[float, ...] | None = None,
) -> RunSeries:
    places, y = _x(steps) if x is None else tuple(x), tuple(_column(steps, name))
    return replace(quantity, note=note, x=places, y=y, axis=axis, error=error)


def _share(steps: Sequence[Row], part: str, whole: str, quantity: RunSeries) -> RunSeries:
    pairs = zip(_column(steps, part), _column(steps, whole), strict=True)
    return replace(quantity, x=_x(steps), y=tuple(a / b if b else math.nan for a, b in pairs))


def _x(steps: Sequence[Row]) -> tuple[float, ...]:
    return tuple(_column(steps, "step"))


def _steps_of(rows: Sequence[Row]) -> Ends:
    return rows[0]["step"], rows[-1]["step"]


def _from_0(lines: Sequence[RunSeries], *, room: float) -> Ends:
    """The ends of a scale that starts at 0, with `room` times the lines' range free above them."""
    known = [y for line in lines for y in line.y if not math.isnan(y)]
    top = max(known) + room * (max(known) - min(known)) if known else 0.0
    return 0.0, top if top > 0 else 1.0


def _has(steps: Sequence[Row], name: str) -> bool:
    return any(name in row for row in steps)


def _column(rows: Sequence[Row], name: str) -> list[float]:
    """One metric of every row; NaN where a row lacks it or the value is too large for an axis."""
    return [value if abs(value := row.get(name, math.nan)) < LARGEST else math.nan for row in rows]
