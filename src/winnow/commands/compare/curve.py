"""One seed's curve: the quality of the weights over seconds, tokens and steps of training.

The points are the evaluations during training. The value of an axis at an evaluation is the cost of training before it:
sampling, verification and updates. It includes the probes of an allocator, and excludes evaluations and the waiting for
checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from winnow.commands.compare.measure import ACCURACY, MEASURES, metrics_of, prefix_of
from winnow.errors import DataError
from winnow.metrics import is_step
from winnow.records import FloatArray, IntArray

SPENT = {  # axis -> the metrics of a step whose sum it is
    "seconds": ("seconds/step", "seconds/probe"),
    "tokens_generated": ("budget/tokens_generated", "budget/probe_tokens"),
    "tokens_trained": ("budget/tokens_trained",),
    "steps": (),  # a step each
}
AXES = tuple(SPENT)
SAVING = "seconds/save"  # waiting for a checkpoint: part of a step's seconds, excluded from the comparison
Row = Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Curve:
    """The evaluations of one run in the order in which they were made, or a mean over runs."""

    source: str  # a run folder, or a file and its group, for messages
    seed: str | None  # None: a mean over seeds that are not known individually
    x: Mapping[str, FloatArray]  # axis -> [P], never falling; only axes that are known
    y: Mapping[str, FloatArray]  # measure -> [P], NaN where it was not measured; only measures that are known


def curve_of(
    rows: Sequence[Row],
    *,
    source: str,
    seed: str,
    task: str | None = None,
    measure: str = ACCURACY,
    seconds: Callable[[Row], float] | None = None,
) -> Curve | None:
    """The curve in the rows of a run's metrics, or of its further task `task`; None for a run without an evaluation.

    It has those of MEASURES and `measure` that were measured. `seconds` replaces the measured seconds of a step.
    Raises DataError for a log that lacks a step before an evaluation, as the cost before it is then unknown.
    """
    evaluated = [row for row in rows if not math.isnan(row.get(f"{prefix_of(task)}accuracy_sampled", math.nan))]
    if not evaluated:
        return None
    steps = [row for row in rows if is_step(row)]
    done = np.array([row["step"] for row in steps], dtype=np.int64)
    after = [int(row["step"]) for row in evaluated]
    _check_whole(done, max(after), source)
    x = {axis: _spent(steps, names)[after] for axis, names in SPENT.items()}
    if seconds is not None:
        x["seconds"] = _before([seconds(row) for row in steps])[after]
    y = {name: _measured(evaluated, metrics_of(name, task)) for name in dict.fromkeys((*MEASURES, measure))}
    known_x = {axis: values for axis, values in x.items() if np.isfinite(values).all()}
    known_y = {name: values for name, values in y.items() if np.isfinite(values).any()}
    return Curve(source, seed, known_x, known_y)


def _check_whole(done: IntArray, last: int, source: str) -> None:
    lacking = sorted(set(range(last)) - set(done.tolist()))
    if lacking:
        raise DataError(
            f"{source}: its metrics lack step {lacking[0]}, so the cost of the {last} steps before its evaluation is "
            f"unknown",
            remedy="put metrics.jsonl back as it was, or omit the run",
            code="data.incomplete",
        )


def _spent(steps: Sequence[Row], names: Sequence[str]) -> FloatArray:
    """[steps + 1] the cost before each step and after the last one. NaN after a step whose number is missing."""
    first, *others = names or ("",)
    each = [row.get(first, math.nan) + sum(row.get(name, 0.0) for name in others) if first else 1.0 for row in steps]
    if first == "seconds/step":
        each = [seconds - row.get(SAVING, 0.0) for seconds, row in zip(each, steps, strict=True)]
    return _before(each)


def _before(each: Sequence[float]) -> FloatArray:
    """[steps + 1] the sum over the steps before each step, and over all steps."""
    return np.concatenate([[0.0], np.cumsum(np.array(each, dtype=np.float64))])


def _measured(rows: Sequence[Row], names: Sequence[str]) -> FloatArray:
    """[P] the values of the first of the metrics that occurs in any row; NaN in rows without it."""
    name = next((name for name in names if any(name in row for row in rows)), names[-1])
    return np.array([row.get(name, math.nan) for row in rows], dtype=np.float64)
