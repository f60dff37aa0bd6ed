"""Choose a learning rate for every arm of a claim from its pilots, by the rule in benchmarks/claims.toml.

    winnow sweep configs/sweeps/claim_02_pilots.toml
    python benchmarks/pilots.py claim_02_pilots

Reads sweeps/NAME, whose labels are ARM,learning_rate=RATE. An arm gets the rate with the highest held-out accuracy,
averaged over all evaluations after step 0 and over seeds. A cell is stable if its seeds fall by at most 5 points from
their running maximum, in the mean. The level is 95% of the mean accuracy over the last third of the evaluations of a
chosen cell that is stable, the lowest of these, rounded down to a tenth of a point. Writes
benchmarks/results/<date>_NAME.json with every curve. If the rate of an arm is the first or the last of its grid, the
grid has to be extended. An arm is left out, with a note, if a run of it has not finished.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import frame
import numpy as np

from winnow.records import FloatArray
from winnow_lab.compare.curve import ACCURACY
from winnow_lab.compare.groups import seed_groups
from winnow_lab.compare.inputs import named_inputs
from winnow_lab.compare.speed_up import LAST, MOST_FALL, SHARE, mean_fall
from winnow_lab.sweep_folder import read_contents

LABEL = re.compile(r"(?P<arm>.+),learning_rate=(?P<rate>.+)")


def main() -> None:
    parser = frame.parser(__doc__)
    parser.add_argument("sweep", help="the name of the pilots' sweep")
    parser.add_argument("--folder", help="default: sweeps/NAME")
    options = frame.parse(parser)
    folder = options.folder or f"sweeps/{options.sweep}"
    groups, notes = seed_groups(named_inputs([folder]).inputs)
    of = {group.label: {str(curve.seed): curve.y[ACCURACY] for curve in group.curves} for group in groups}
    contents = read_contents(Path(folder))
    unfinished = arms_with_unfinished(of, list(contents.labels), [str(seed) for seed in contents.seeds])
    notes += [f"{arm}: left out, as a run of it has not finished" for arm in unfinished]
    cells = {label: described(curves) for label, curves in of.items() if _split(label)[0] not in unfinished}
    rates = chosen(cells)
    report = {
        "chosen": rates,
        "at the edge of the grid": at_edge(cells, rates),
        "level": level([cells[f"{arm},learning_rate={rate:g}"] for arm, rate in rates.items()]),
        "cells": cells,
        "steps": groups[0].curves[0].x["steps"].tolist(),
        "notes": [note.replace(f"{folder}/", "") for note in notes],  # a result names no folder of the machine
    }
    frame.finish(options.sweep, report, options, show=("chosen", "at the edge of the grid", "level"))


def arms_with_unfinished(
    curves: Mapping[str, Mapping[str, FloatArray]], labels: Sequence[str], seeds: Sequence[str]
) -> list[str]:
    """The arms of a sweep's labels that lack a label, a seed, or an evaluation that another run has."""
    points = max(len(y) for of in curves.values() for y in of.values())
    whole = {
        label for label, of in curves.items() if of.keys() == set(seeds) and {len(y) for y in of.values()} == {points}
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
