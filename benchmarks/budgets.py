"""Samplers, allocators, rounds and cuts at matched cost: docs/budget.md.

    winnow sweep configs/sweeps/budget_screen.toml
    python benchmarks/budgets.py budget_screen

Reads sweeps/NAME, and the sweep's baseline. A candidate and its baseline are compared seed by seed where both have
spent the same: at the end of the shorter run of the two, on each axis. Between two evaluations it is interpolated.
Beside it is the time to 95% of the baseline's plateau, as `winnow compare` has it. There are no seconds, because runs
shared the machine. Tokens beyond cuts are on no axis. Writes benchmarks/results/<date>_NAME.json.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import frame
import numpy as np

from winnow.state.logbook import read_metrics
from winnow_lab.compare.comparison import compare_inputs
from winnow_lab.compare.curve import ACCURACY, Curve, estimate
from winnow_lab.compare.groups import SeedGroup
from winnow_lab.compare.speed_up import SpeedUp

AXES = ("tokens_generated", "tokens_trained", "steps")
BASELINES = {"vip_rloo": "rloo"}  # of the others it is that of the sweep
POINTS = 64  # at which a curve is read for its mean


def main() -> None:
    parser = frame.parser(__doc__)
    parser.add_argument("sweep", help="the name of the sweep's file")
    parser.add_argument("--folder", help="default: sweeps/NAME")
    options = frame.parse(parser)
    folder = Path(options.folder or f"sweeps/{options.sweep}")
    found = compare_inputs([str(folder)])
    groups = {group.label: group for group in found.groups}
    report = {
        "cells": {label: cell(group) for label, group in groups.items()},
        "contrasts": {
            label: contrast(group, groups[base], base)
            for label, group in groups.items()
            if (base := BASELINES.get(label, found.baseline)) != label
        },
        "sooner at 95% of the plateau": {  # than the sweep's baseline
            label: {row.axis: _times_sooner(row) for row in found.speed_ups if row.group == label and row.axis in AXES}
            for label in groups
            if label != found.baseline
        },
    }
    frame.finish(options.sweep, report, options, show=("contrasts",))


def cell(group: SeedGroup) -> dict[str, Any]:
    """What the runs of a label spent, and where they ended: means over its seeds."""
    rows = [read_metrics(run.path) for run in group.runs]
    steps = [[row for row in one if "budget/rollouts" in row] for one in rows]

    def per_seed(name: str, of: Sequence[Sequence[Mapping[str, float]]]) -> list[float]:
        return [sum(row.get(name, 0.0) for row in one) for one in of]

    generated = np.array(per_seed("budget/tokens_generated", steps))
    probe = np.array(per_seed("budget/probe_tokens", rows))
    beyond = np.array(per_seed("cut/tokens_beyond", steps))
    flat = np.array(per_seed("group/flat", steps)) / np.array(per_seed("group/count", steps))
    brier = [row["plan/brier"] for one in steps for row in one if "plan/brier" in row]
    start, end = _ends(group.curves)
    return {
        "seeds": [run.seed for run in group.runs],
        "accuracy at first": _number(start.mean()),
        "accuracy at the end": _estimated(end),
        "tokens": _number((generated + probe).mean()),
        "tokens trained": _number(np.mean(per_seed("budget/tokens_trained", steps))),
        "share of tokens wasted": _number(np.mean(np.array(per_seed("budget/tokens_wasted", steps)) / generated)),
        "share of tokens in probes": _number(np.mean(probe / (generated + probe))),
        "share of tokens beyond cuts": _number(np.mean(beyond / (generated + probe + beyond))),
        "share of flat groups": _number(flat.mean()),
        "brier score": _number(np.mean(brier)) if brier else None,
    }


def _ends(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    values = [curve.y[ACCURACY] for curve in curves]
    return np.array([of[0] for of in values]), np.array([of[-1] for of in values])


def contrast(group: SeedGroup, base: SeedGroup, name: str) -> dict[str, Any]:
    """The paired difference of the accuracies by axis: at the last matched point, and as a mean over the curves."""
    others = {curve.seed: curve for curve in base.curves}
    pairs = [(curve, others[curve.seed]) for curve in group.curves if curve.seed in others]
    return {"baseline": name, **{axis: _matched(pairs, axis) for axis in AXES}}


def _matched(pairs: Sequence[tuple[Curve, Curve]], axis: str) -> dict[str, Any]:
    ends = [min(mine.x[axis][-1], other.x[axis][-1]) for mine, other in pairs]
    last = [_at(m, axis, end) - _at(o, axis, end) for (m, o), end in zip(pairs, ends, strict=True)]
    mean = [
        float(np.mean([_at(m, axis, x) - _at(o, axis, x) for x in np.linspace(0.0, end, POINTS)]))
        for (m, o), end in zip(pairs, ends, strict=True)
    ]
    return {
        "at": _number(np.mean(ends)),
        "difference": _estimated(np.array(last)),
        "mean difference": _estimated(np.array(mean)),
    }


def _at(curve: Curve, axis: str, x: float) -> float:
    return float(np.interp(x, curve.x[axis], curve.y[ACCURACY]))


def _estimated(values: np.ndarray) -> dict[str, Any]:
    of = estimate(values)
    return {
        "mean": _number(of.mean),
        "low": _number(of.low),
        "high": _number(of.high),
        "seeds": values.round(4).tolist(),
    }


def _times_sooner(row: SpeedUp) -> dict[str, float | None] | None:
    names = ("ratio", "low", "high", "at_most")
    return None if row.ratio is None else {name: _optional(getattr(row.ratio, name)) for name in names}


def _optional(value: float | None) -> float | None:
    return None if value is None else _number(value)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.5g}")


if __name__ == "__main__":
    main()
