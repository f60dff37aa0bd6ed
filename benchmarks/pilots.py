"""Choose a learning rate for every arm from its pilots, and compare runs at chosen rates in equal seconds.

    python benchmarks/pilots.py claim_02_pilots
    python benchmarks/pilots.py published_arithmetic_pilots --seconds 200
    python benchmarks/pilots.py published_arithmetic --seconds 200 --level LEVEL --evaluations FOLDER

Reads sweeps/NAME. Labels of pilots are ARM,learning_rate=RATE. An arm gets the rate with the highest held-out accuracy,
averaged over all evaluations after step 0 and over seeds. With --seconds T it is averaged over the seconds 0 to T of
the training clock, which is the area below the curve over T. A cell is stable if its seeds fall by at most 5 points
from their running maximum, in the mean. The level is 95% of the mean accuracy over the last third of the evaluations of
a chosen cell that is stable, the lowest of these, rounded down to a tenth of a point. If the rate of an arm is the
first or the last of its grid, the grid has to be extended. An arm is left out, with a note, if a run of it has not
finished. benchmarks/claims.toml and configs/sweeps/published_arithmetic_pilots.toml register these rules.

The labels of other sweeps are arms. Of these the contrasts are decided in their --order, over the seeds that every arm
has finished in one of the folders. At a later look at some seeds (--looks N), "equal" takes 1 - 0.10 / N, and no other
word is tested. --evaluations: files of `winnow eval --json`, MODEL.TASK.json, whose models are "base" and ARM-SEED.
Writes benchmarks/results/<date>_NAME.json with every curve.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import frame
import numpy as np
from auto_sizes import SAMPLED, on_clock, points
from auto_sizes import seconds as seconds_to
from decisions import Times, decided, word_of
from played import evaluations

from winnow.algos.intervals import over_seeds
from winnow.records import FloatArray
from winnow_lab.compare.curve import ACCURACY, Curve, Row, curve_of
from winnow_lab.compare.speed_up import LAST, MOST_FALL, SHARE, mean_fall
from winnow_lab.sweep_folder import read_contents

LABEL = re.compile(r"(?P<arm>.+),learning_rate=(?P<rate>.+)")
Cells = dict[str, dict[str, Curve]]  # label -> seed -> curve
Arm = Mapping[str, Any]
# Of runs in equal seconds: GROUP-BASELINE in order, the margin of "equal", and the fewest seeds of a word
ORDER = ("pods_32_8-grpo_8", "pods_32_8-grpo_32", "grpo_32-grpo_8")
MARGIN, LEAST = (-0.02, 0.02), 4
AXES = ("steps", "tokens_generated", "tokens_trained")
SHOWN = ("chosen", "at the edge of the grid", "level", "notes", "seeds", "contrasts")


def main() -> None:
    parser = frame.parser(__doc__)
    parser.add_argument("sweep", help="the name of the sweep's file")
    parser.add_argument("--folder", type=Path, nargs="+", help="of one sweep, or of several; default: sweeps/NAME")
    parser.add_argument("--seconds", type=float, help="T")
    parser.add_argument("--seeds", nargs="+", help="of pilots, if the others were not run; default: all of the sweep")
    parser.add_argument("--level", type=float, help="to which the seconds of each arm are compared")
    parser.add_argument("--order", nargs="*", default=ORDER, metavar="GROUP-BASELINE", help="of the contrasts, if any")
    parser.add_argument("--looks", type=int, default=1, help="at the contrasts' seeds, this one included")
    parser.add_argument("--evaluations", type=Path, help="a folder")
    options = frame.parse(parser)
    folders, evaluated = options.folder or [Path("sweeps", options.sweep)], options.evaluations
    options.folder = options.evaluations = None  # paths of this machine
    sweeps = [read_contents(folder) for folder in folders]
    of_labels, labels = sweeps[0].labels, list(sweeps[0].labels)
    assert all(sweep.labels == of_labels for sweep in sweeps), "the folders are of sweeps with other cells"
    seeds = options.seeds or [str(seed) for sweep in sweeps for seed in sweep.seeds]
    cells: Cells = {label: {} for label in labels}
    hours = {label: {"training": 0.0, "evaluation": 0.0} for label in labels}
    for label, seed, rows in (run for folder in folders for run in frame.runs_of(folder)):
        hours[label]["training"] += sum(row.get("seconds/step", 0.0) for row in rows) / 3600
        hours[label]["evaluation"] += sum(row.get("eval/seconds", 0.0) for row in rows) / 3600
        if str(seed) in seeds and (curve := read(rows, str(seed), options.seconds)) is not None:
            cells[label][str(seed)] = curve
    if all(map(LABEL.fullmatch, labels)):
        report = of_pilots(cells, seeds, options.seconds)
    else:
        report = of_runs(cells, options.seconds, options.level, options.order, options.looks)
        for arm, of in report["arms"].items():
            of["learning rate"] = of_labels[arm]["optimizer.learning_rate"]
    if evaluated:
        report["evaluations"] = evaluations(evaluated)
        report["trained - base"] = beside_base(report["evaluations"], labels)
    frame.finish(options.sweep, report | {"hours": hours}, options, show=[part for part in SHOWN if part in report])


def read(rows: Sequence[Row], seed: str, seconds: float | None) -> Curve | None:
    """A run's curve. With T, its seconds are those of the training clock, and it ends at T, with its values there
    interpolated. None for a run without an evaluation, or with none at T or later.
    """
    if seconds is None:
        return curve_of(rows, source="a run", seed=seed)
    curve = on_clock(rows, seed)
    if curve is None or (clock := curve.x["seconds"])[-1] < seconds:
        return None

    def cut(of: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        return {name: np.append(y[clock < seconds], np.interp(seconds, clock, y)) for name, y in of.items()}

    return replace(curve, x=cut(curve.x), y=cut(curve.y))


def over_seconds(curve: Curve) -> float:
    """The mean accuracy over the seconds: the area below the curve, whose seconds begin at 0, over its width."""
    x, y = curve.x["seconds"], curve.y[ACCURACY]
    return float((np.diff(x) * (y[1:] + y[:-1])).sum() / 2 / x[-1])


def of_pilots(cells: Cells, seeds: Sequence[str], seconds: float | None) -> dict[str, Any]:
    """The rate of each arm, and the level."""
    accuracies = {label: {seed: curve.y[ACCURACY] for seed, curve in of.items()} for label, of in cells.items()}
    unfinished = arms_with_unfinished(accuracies, list(cells), seeds, equal=seconds is None)
    of = {label: described(curves) for label, curves in accuracies.items() if _split(label)[0] not in unfinished}
    for label in of if seconds else ():
        of[label]["mean accuracy"] = round(float(np.mean([over_seconds(curve) for curve in cells[label].values()])), 5)
    rates = chosen(of)
    return {
        "chosen": rates,
        "at the edge of the grid": at_edge(of, rates),
        "level": level([of[f"{arm},learning_rate={rate:g}"] for arm, rate in rates.items()]),
        "cells": of,
        "points": _points(cells),
        "notes": [f"{arm}: left out, as a run of it has not finished" for arm in unfinished],
    }


def arms_with_unfinished(
    curves: Mapping[str, Mapping[str, FloatArray]], labels: Sequence[str], seeds: Sequence[str], *, equal: bool = True
) -> list[str]:
    """The arms of a sweep's labels that lack a label, a seed or, if all have `equal` numbers, an evaluation."""
    points = max(len(y) for of in curves.values() for y in of.values())
    whole = {
        label
        for label, of in curves.items()
        if of.keys() == set(seeds) and (not equal or {len(y) for y in of.values()} == {points})
    }
    return list(dict.fromkeys(_split(label)[0] for label in labels if label not in whole))


def described(curves: Mapping[str, FloatArray]) -> dict[str, Any]:
    """What the rule reads of a cell, and its curves."""
    fall = mean_fall([np.asarray(y) for y in curves.values()])
    return {
        "mean accuracy": round(float(np.mean([y[1:].mean() for y in curves.values()])), 5),
        "fall": round(fall, 5),
        "stable": fall <= MOST_FALL,
        "last third": round(float(np.mean([y[-math.ceil(len(y) / LAST) :].mean() for y in curves.values()])), 5),
        "seeds": {seed: [round(float(value), 5) for value in y] for seed, y in curves.items()},
    }


def chosen(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """arm -> its rate with the highest mean accuracy, of equal ones the lowest."""
    return {
        arm: max(rates, key=lambda rate, rates=rates: (rates[rate]["mean accuracy"], -rate))  # type: ignore[misc]
        for arm, rates in _by_arm(cells).items()
    }


def at_edge(cells: Mapping[str, Mapping[str, Any]], rates: Mapping[str, float]) -> list[str]:
    """The arms whose rate is the first or the last of their grid."""
    return [arm for arm, of in _by_arm(cells).items() if rates[arm] in (min(of), max(of))]


def level(cells: Sequence[Mapping[str, Any]]) -> float | None:
    """The level from the chosen cells; None if none of them is stable."""
    stable = [cell["last third"] for cell in cells if cell["stable"]]
    return math.floor(1000 * SHARE * min(stable)) / 1000 if stable else None


def of_runs(cells: Cells, seconds: float, level: float | None, order: Sequence[str], looks: int) -> dict[str, Any]:
    """What each arm did by T, and the contrasts in their order, over the seeds that every arm has."""
    seeds = sorted(set.intersection(*map(set, cells.values())), key=int)
    arms: dict[str, dict[str, Any]] = {}
    for arm, curves in ((arm, [of[seed] for seed in seeds]) for arm, of in cells.items()):
        arms[arm] = {
            "over the seconds": [over_seconds(curve) for curve in curves],
            "mean": frame.interval([over_seconds(curve) for curve in curves]),
            "seconds to the level": [level and seconds_to(curve, level) for curve in curves],
            "accuracy at T": [float(curve.y[ACCURACY][-1]) for curve in curves],
            **{f"{axis} at T": [float(curve.x[axis][-1]) for curve in curves] for axis in AXES},
        }
    rows = list[dict[str, Any]]()
    for group, baseline in (pair.split("-") for pair in order):
        tested = looks == 1 and all(row["word"] in ("gain", "loss") for row in rows)
        row = contrast(arms[baseline], arms[group], seconds, tested=tested, looks=looks)
        rows.append(row | {"baseline": baseline, "group": group})
    return {"seeds": seeds, "contrasts": rows, "arms": arms, "points": _points(cells)}


def contrast(one: Arm, two: Arm, seconds: float, *, tested: bool, looks: int = 1) -> dict[str, Any]:
    """The second arm minus the first. It is `tested` for a gain or a loss if every contrast before it is one. "sooner":
    seconds to the level, those of the first over those of the second, and T for a seed that never reaches it.
    """
    apart = np.array(two["over the seconds"]) - np.array(one["over the seconds"])
    near = over_seeds(apart, 1 - 0.10 / looks)
    word = word_of(*over_seeds(apart), near, tested=tested, none=0.0, margin=MARGIN)
    row = {"word": word if len(apart) >= LEAST else "undecided", **frame.interval(apart.tolist()), "near": near}
    at = [arm["seconds to the level"] for arm in (one, two)]
    if any(map(any, at)) and not any(0 in of for of in at):  # a level, which no seed has before training
        found = decided(*(Times.of(of, seconds) for of in at))
        row["sooner"] = {name: getattr(found, name) for name in ("ratio", "low", "high", "bound")}
    return row


def beside_base(found: Mapping[str, Mapping[str, Any]], arms: Sequence[str]) -> dict[str, Any]:
    """ARM.TASK -> accuracies -> mean over seeds of what its models have more than the base, with its interval."""
    made: dict[str, Any] = {}
    for arm, task in ((arm, name.removeprefix("base.")) for arm in arms for name in found if name.startswith("base.")):
        of = [found[n] for n in found if n.startswith(f"{arm}-") and n.endswith(f".{task}")]
        base = found[f"base.{task}"]
        names = [name for name in (SAMPLED, "eval/part/strict", "eval/part/loose") if name in base]
        made[f"{arm}.{task}"] = {name: frame.interval([one[name] - base[name] for one in of]) for name in names}
    return made


def _points(cells: Cells) -> dict[str, dict[str, list[list[float]]]]:
    """label -> seed -> [seconds, steps, accuracy] of each evaluation."""
    return {label: {seed: points(curve) for seed, curve in of.items()} for label, of in cells.items()}


def _by_arm(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[float, Mapping[str, Any]]]:
    arms: dict[str, dict[float, Mapping[str, Any]]] = {}
    for label, cell in cells.items():
        arm, rate = _split(label)
        arms.setdefault(arm, {})[rate] = cell
    return arms


def _split(label: str) -> tuple[str, float]:
    """(arm, rate). Raises ValueError."""
    match = LABEL.fullmatch(label)
    if match is None:
        raise ValueError(f"{label!r} is not ARM,learning_rate=RATE")
    return match["arm"], float(match["rate"])


if __name__ == "__main__":
    main()
