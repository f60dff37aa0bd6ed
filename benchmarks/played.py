#!/usr/bin/env python
"""The result of a sweep in an environment: held-out success before and after, by variant and seed.

    winnow sweep configs/sweeps/guess_number.toml
    python benchmarks/played.py guess_number

Reads sweeps/NAME, and of --evaluations the files MODEL.TASK.json that `winnow eval --json` wrote. The share of problems
that are solved is that of sampled rollouts. The interval of a variant is Student's, over the gains of its seeds. The
reference lines of guess_number are exact: guesses of any number from 1 to 31, guesses of any number that the answers
leave, and bisection. Writes benchmarks/results/<date>_NAME.json.
"""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import frame
import numpy as np

from winnow.algos.intervals import over_seeds
from winnow.state.logbook import totals

MOST, TURNS = 31, 5
WON, ERROR = "eval/accuracy_sampled", "eval/accuracy_sampled_sem"


@functools.cache
def consistent(numbers: int, turns: int) -> float:
    """The probability that guesses drawn from the numbers that are left find one of `numbers` within `turns`."""
    if not numbers or not turns:
        return 0.0
    wins = 0.0
    for guess in range(1, numbers + 1):
        below, above = guess - 1, numbers - guess
        later = below * consistent(below, turns - 1) + above * consistent(above, turns - 1)
        wins += (1 + later) / numbers
    return wins / numbers


@functools.cache
def bisection(numbers: int, turns: int) -> float:
    """The same for the guess in the middle."""
    if not numbers or not turns:
        return 0.0
    below = (numbers - 1) // 2
    above = numbers - 1 - below
    return (1 + below * bisection(below, turns - 1) + above * bisection(above, turns - 1)) / numbers


def any_number(numbers: int, turns: int) -> float:
    """The same for guesses drawn from all numbers, repeated ones included."""
    return 1 - (1 - 1 / numbers) ** turns


def evaluations(folder: Path) -> dict[str, dict[str, Any]]:
    """MODEL.TASK -> what `winnow eval --json` wrote, of every file of this name in a folder, of one task each."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        (one,) = json.loads(path.read_text(encoding="utf-8"))["tasks"].values()
        sizes = {name: one[name] for name in ("problems", "rollouts_per_prompt", "max_new_tokens")}
        found[path.stem] = {**sizes, **one["metrics"], "intervals": one["intervals"]}
    return found


def summary(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The first and the last evaluation of a run, and its cost."""
    evaluated, cost = [row for row in rows if WON in row], totals(rows)
    first, last = evaluated[0], evaluated[-1]
    return {
        "before": first[WON],
        "before, standard error": first[ERROR],
        "after": last[WON],
        "after, standard error": last[ERROR],
        "steps": cost["steps"],
        "minutes": (cost["seconds/step"] + cost["eval/seconds"]) / 60,
        "tokens trained": cost["budget/tokens_trained"],
    }


def variant(runs: list[dict[str, float]]) -> dict[str, Any]:
    """Means over the seeds, and the interval of the mean gain."""
    gains = [run["after"] - run["before"] for run in runs]
    return {
        "before": statistics.mean(run["before"] for run in runs),
        "after": statistics.mean(run["after"] for run in runs),
        "gain": statistics.mean(gains),
        "interval": None if len(gains) < 2 else list(over_seeds(np.array(gains))),
        "minutes": statistics.mean(run["minutes"] for run in runs),
        "seeds": runs,
    }


def main() -> None:
    parser = frame.parser(__doc__)
    parser.add_argument("sweep", help="the name of the sweep's file")
    parser.add_argument("--folder", type=Path, help="default: sweeps/NAME")
    parser.add_argument("--evaluations", type=Path, help="a folder")
    options = frame.parse(parser)
    found: dict[str, list[dict[str, float]]] = {}
    for label, _, rows in frame.runs_of(options.folder or Path("sweeps", options.sweep)):
        found.setdefault(label, []).append(summary(rows))
    report: dict[str, Any] = {"variants": {name: variant(runs) for name, runs in found.items()}}
    if options.evaluations:
        report["evaluations"] = evaluations(options.evaluations)
    options.evaluations = options.folder = None  # paths of this machine
    if options.sweep == "guess_number":
        report["reference"] = {of.__name__: of(MOST, TURNS) for of in (any_number, consistent, bisection)}
    frame.finish(options.sweep, report, options, show=tuple(report))


if __name__ == "__main__":
    main()
