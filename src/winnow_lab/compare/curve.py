"""The curves of seeds over seconds, tokens and steps of training, and the mean curve of a group.

The points are the evaluations during training. The value of an axis at an evaluation is the cost of training before it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from winnow.algos.intervals import over_seeds
from winnow.errors import ConfigError, DataError, near_miss
from winnow.metrics import is_step
from winnow.records import FloatArray, IntArray

ACCURACY = "accuracy"
EVALUATION = "eval/"
TRAINED = "reward/"  # metrics of the rollouts of a step, which were sampled after the cost of the steps before it
MEASURED = {  # measure -> metrics of an evaluation; the first that is present counts
    ACCURACY: ("accuracy_sampled",),
    "length": ("length_mean",),
    "answer": ("part/answer", "accuracy_sampled"),
    "formatted": ("formatted",),
    "correct_and_formatted": ("correct_and_formatted",),
}
MEASURES = tuple(MEASURED)
SHARES = tuple(measure for measure in MEASURES if measure != "length")
SPENT = {  # axis -> the metrics of a step whose sum it is
    "seconds": ("seconds/step", "seconds/probe"),
    "tokens_generated": ("budget/tokens_generated", "budget/probe_tokens"),
    "tokens_trained": ("budget/tokens_trained",),
    "steps": (),  # a step each
}
AXES = tuple(SPENT)
SAVING = "seconds/save"  # waiting for a checkpoint: part of a step's seconds, excluded from the comparison
Row = Mapping[str, float]
_OF_TASK = re.compile(rf"{EVALUATION}([^/]+)/(?:accuracy_sampled|reward_mean)")
NORMAL = 1.96  # standard errors to either side: the band that papers draw


def prefix_of(task: str | None) -> str:
    """The prefix of an evaluation's metrics, or of the metrics of its further task `task`."""
    return EVALUATION if task is None else f"{EVALUATION}{task}/"


def further_tasks(rows: Iterable[Mapping[str, float]]) -> list[str]:
    """The further tasks of which the rows have an evaluation."""
    matches = (_OF_TASK.fullmatch(name) for row in rows for name in row)
    return sorted({match[1] for match in matches if match})


def metrics_of(measure: str, task: str | None) -> list[str]:
    """The metrics of a measure, of the further task `task` if it is given; the first that is present counts."""
    if measure.startswith(TRAINED):
        return [measure]
    if measure in MEASURED:
        return [prefix_of(task) + name for name in MEASURED[measure]]
    return [prefix_of(task) + measure.removeprefix(EVALUATION)]


def measurable(rows: Iterable[Mapping[str, float]], task: str | None) -> frozenset[str]:
    """Every measure that has a number in some row."""
    names = {name for row in rows for name, value in row.items() if not math.isnan(value)}
    prefix = prefix_of(task)
    plain = {name for name in names if name.startswith(TRAINED)} if task is None else set()
    plain |= {EVALUATION + name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    return frozenset(plain | {measure for measure in SHARES if names & set(metrics_of(measure, task))})


def check_measure(measure: str, known: Sequence[tuple[str, frozenset[str]]]) -> None:
    """Raise ConfigError for a measure that any of these pairs (run or file, its measures) lacks."""
    common = frozenset.intersection(*(names for _, names in known))
    lacking = [source for source, names in known if measure not in names]
    if not lacking:
        return
    if len(lacking) == len(known):
        what = f"there is no measure {measure!r} in what is compared"
    else:
        what = f"{', '.join(lacking[:3])}{', ...' * (len(lacking) > 3)} lacks the measure {measure!r}"
    raise ConfigError(what, remedy=near_miss(measure, common), code="config.unknown_name")


def title(measure: str) -> str:
    """The name of a measure in tables and pictures."""
    return measure.removeprefix(EVALUATION).replace("_", " ") if measure != ACCURACY else ACCURACY


def heading(measure: str) -> str:
    """The name of a measure, with what it was measured on."""
    return f"{measure} of training" if measure.startswith(TRAINED) else f"held-out {title(measure)}"


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
    restoring: Callable[[int], str] = lambda step: "put metrics.jsonl back as it was",
) -> Curve | None:
    """The curve in the rows of a run's metrics, or of its further task `task`; None for a run without an evaluation.

    Its points are the evaluations, and for a measure of training (reward/...) the steps. It has those of MEASURES and
    `measure` that were measured. `seconds` replaces the measured seconds of a step, and
    `restoring` is the remedy for a step that is missing.
    Raises DataError for a log that lacks a step before an evaluation, as the cost before it is then unknown.
    """
    points = (f"{prefix_of(task)}accuracy_sampled", *metrics_of(measure, task))
    evaluated = [row for row in rows if any(not math.isnan(row.get(name, math.nan)) for name in points)]
    if not evaluated:
        return None
    steps = [row for row in rows if is_step(row)]
    done = np.array([row["step"] for row in steps], dtype=np.int64)
    after = [int(row["step"]) for row in evaluated]
    _check_whole(done, max(after), source, restoring)
    x = {axis: _spent(steps, names)[after] for axis, names in SPENT.items()}
    if seconds is not None:
        x["seconds"] = _before([seconds(row) for row in steps])[after]
    y = {name: _measured(evaluated, metrics_of(name, task)) for name in dict.fromkeys((*MEASURES, measure))}
    known_x = {axis: values for axis, values in x.items() if np.isfinite(values).all()}
    known_y = {name: values for name, values in y.items() if np.isfinite(values).any()}
    return Curve(source, seed, known_x, known_y)


def _check_whole(done: IntArray, last: int, source: str, restoring: Callable[[int], str]) -> None:
    lacking = sorted(set(range(last)) - set(done.tolist()))
    if lacking:
        raise DataError(
            f"{source}: its metrics lack step {lacking[0]}, so the cost of the {last} steps before its evaluation is "
            f"unknown",
            remedy=f"{restoring(lacking[0])}, or omit the run",
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


class Estimate(NamedTuple):
    """A mean over seeds. For a single curve, all numbers but the mean are NaN."""

    mean: float
    standard_error: float  # ddof 1
    low: float  # the 95% interval of Student's t, which keeps its coverage with few seeds
    high: float


class OnSharedX(NamedTuple):
    """The curves of a group at the same places."""

    x: FloatArray  # [X], rising
    y: FloatArray  # [S, X]


@dataclass(frozen=True, eq=False)
class MeanCurve:
    """The mean curve of a group over one axis, [X] each."""

    x: FloatArray
    mean: FloatArray
    standard_error: FloatArray
    low: FloatArray
    high: FloatArray

    def at(self, place: int) -> Estimate:
        """The estimate at one point."""
        return Estimate(*(float(values[place]) for values in (self.mean, self.standard_error, self.low, self.high)))


def estimate(values: FloatArray) -> Estimate:
    """The mean of [S] numbers, one per seed."""
    error = float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else np.nan
    return Estimate(float(values.mean()), error, *over_seeds(values))


def on_shared_x(curves: Sequence[Curve], axis: str, measure: str) -> OnSharedX | None:
    """The values of all curves at every x at which any of them was measured, in the range that all of them cover.

    Values between two points of a curve are interpolated linearly, and nothing is extrapolated. Curves with the same x
    keep their points. None if a curve lacks the axis or the measure, or if no x is in the range of all.
    """
    if not curves or any(axis not in curve.x or measure not in curve.y for curve in curves):
        return None
    points = [_distinct(curve.x[axis], curve.y[measure]) for curve in curves]
    first, last = max(x[0] for x, _ in points), min(x[-1] for x, _ in points)
    pooled = np.unique(np.concatenate([x for x, _ in points]))
    shared = pooled[(pooled >= first) & (pooled <= last)]
    if not len(shared):
        return None
    return OnSharedX(shared, np.stack([np.interp(shared, x, y) for x, y in points]))


def mean_curve(curves: Sequence[Curve], axis: str, measure: str) -> MeanCurve | None:
    """The mean of `on_shared_x` with its errors; None if that is None."""
    shared = on_shared_x(curves, axis, measure)
    if shared is None:
        return None
    columns = np.array([estimate(values) for values in shared.y.T])
    return MeanCurve(shared.x, *columns.T)


def _distinct(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The measured points of one curve; of several at the same x, the last."""
    measured = np.isfinite(y)
    x, y = x[measured], y[measured]
    last = np.append(np.diff(x) > 0, True)
    return x[last], y[last]
