#!/usr/bin/env python
"""Does a run that chooses its sizes reach the best fixed cell's level as soon? The rule in a sweep's file, computed.

    winnow sweep configs/sweeps/auto_arithmetic.toml
    python benchmarks/auto_sizes.py auto_arithmetic

Reads sweeps/NAME, whose cells that choose begin with "auto", and whose cell "recipe" or "own" has the sizes of the
configuration. On --choosing seeds the fixed cells give the level and the best cell, unless --level and --best are
given. All other seeds compare: the ratio of a cell's seconds to the best cell's, paired by seed, with Student's
interval of the logs. Times are those of `winnow compare` on the training clock. A run that never reaches the level
counts as --horizon seconds. Writes benchmarks/results/<date>_NAME.json.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import frame
import numpy as np
from decisions import Times, decided

from winnow.run_view.decisions import decisions
from winnow.state.decisions import read_decisions
from winnow_lab.compare.curve import ACCURACY, Curve, Row, curve_of
from winnow_lab.compare.speed_up import SHARE, seed_time
from winnow_lab.sweep_folder import read_sweep

SAMPLED = "eval/accuracy_sampled"
LAST = 3  # evaluations whose mean is the plateau
BOUNDS = {"auto": 1.15, "auto_bad": 1.3, "auto_wasteful": 1.3}
OWN = ("recipe", "own")
Cells = dict[str, dict[int, Curve]]


def main() -> None:
    parser = frame.parser(__doc__)
    parser.add_argument("sweep", help="the name of the sweep's file")
    parser.add_argument("--folder", type=Path, help="default: sweeps/NAME")
    parser.add_argument("--choosing", type=int, nargs="+", default=[0, 1], help="seeds")
    parser.add_argument("--horizon", type=float, default=56.0)
    parser.add_argument("--level", type=float, help="with --best: of an earlier sweep, so that all seeds compare")
    parser.add_argument("--best")
    options = frame.parse(parser)
    folder, options.folder = options.folder or Path("sweeps", options.sweep), None  # a path of this machine
    assert not (left := [run.name for run in read_sweep(folder) if not run.finished]), f"not finished: {left}"
    cells: Cells = {}
    for cell, seed, rows in frame.runs_of(folder):
        curve = on_clock(rows, str(seed))
        assert curve is not None, f"{cell} has no evaluation with the seed {seed}"
        cells.setdefault(cell, {})[seed] = curve
    earlier = options.level and (options.level, options.best)
    choosing = [] if earlier else options.choosing
    report = compared(cells, choosing, options.horizon, earlier)
    report["decisions"] = {cell: chosen_sizes(folder / cell) for cell in cells if cell.startswith("auto")}
    for cell, found in report["decisions"].items():
        compares = [seed for seed in found["first window"] if int(seed) not in choosing]
        times, best = report["seconds"][cell], report["seconds"][report["best"]]
        if all(times[seed] and best[seed] for seed in compares):
            logs = [math.log((times[seed] - found["first window"][seed]) / best[seed]) for seed in compares]
            report["cells"][cell]["ratio without the first window"] = math.exp(statistics.mean(logs))
    frame.finish(options.sweep, report, options, show=("level", "best", "cells", "holds", "decisions"))


def compared(
    cells: Cells, choosing: Sequence[int], horizon: float, earlier: tuple[float, str] | None = None
) -> dict[str, Any]:
    """Level and best cell by the choosing seeds, or of an `earlier` sweep, and every cell against it by the others."""
    plateaus = {
        cell: statistics.mean(
            float(curve.y[ACCURACY][-LAST:].mean())
            for seed, curve in curves.items()
            if not choosing or seed in choosing
        )
        for cell, curves in cells.items()
    }
    fixed = [cell for cell in cells if not cell.startswith("auto")]
    level = earlier[0] if earlier else SHARE * max(plateaus[cell] for cell in fixed)
    times = {cell: {seed: seconds(curve, level) for seed, curve in curves.items()} for cell, curves in cells.items()}
    early = {
        cell: statistics.geometric_mean(Times.of([times[cell][seed] for seed in choosing], horizon).at)
        for cell in fixed
        if choosing
    }
    best = earlier[1] if earlier else min(early, key=early.__getitem__)
    rows = {cell: row(times, cell, best, choosing, horizon) | {"plateau": plateaus[cell]} for cell in cells}
    middle = statistics.median(rows[cell]["ratio"] for cell in fixed)
    own = [rows[cell]["ratio"] for cell in OWN if cell in rows and cell != best]  # nothing is below the best cell
    below = min([middle, *own])
    return {
        "level": level,
        "best": best,
        "median cell": middle,
        "choosing": early,
        "cells": rows,
        "holds": {cell: rows[cell]["ratio"] <= min(most, below) for cell, most in BOUNDS.items() if cell in rows},
        "seconds": {cell: {str(seed): time for seed, time in of.items()} for cell, of in times.items()},
        "curves": {cell: {str(seed): points(one) for seed, one in curves.items()} for cell, curves in cells.items()},
    }


def on_clock(rows: Sequence[Row], seed: str) -> Curve | None:
    """A run's curve over the seconds of the training clock, which also runs while sizes are chosen."""
    curve = curve_of(rows, source="a run", seed=seed)
    clock = [3600 * row["eval/training_hours"] for row in rows if np.isfinite(row.get(SAMPLED, np.nan))]
    return curve and replace(curve, x={**curve.x, "seconds": np.array(clock)})


def seconds(curve: Curve, level: float) -> float | None:
    """Of training until the level; None if it is never reached."""
    time = seed_time(curve, ACCURACY, level)
    return None if time.ending == "never" else time.x["seconds"]


def row(
    times: Mapping[str, Mapping[int, float | None]], cell: str, best: str, choosing: Sequence[int], horizon: float
) -> dict[str, Any]:
    """The ratio to the best cell, 1 for itself, and how often the level was never reached."""
    seeds = sorted(set(times[cell]) - set(choosing))
    one, two = (Times.of([times[name][seed] for seed in seeds], horizon) for name in (cell, best))
    found, never = decided(one, two), sum(one.never)
    interval = [found.low, found.high] if len(seeds) > 1 else None
    return {"ratio": found.ratio, "interval": interval, "never": never, "seeds": len(seeds)}


def points(curve: Curve) -> list[list[float]]:
    """[seconds, steps, accuracy] of each evaluation."""
    return np.stack([curve.x["seconds"], curve.x["steps"], curve.y[ACCURACY]], axis=1).round(4).tolist()


def chosen_sizes(cell: Path) -> dict[str, Any]:
    """Of each seed the sizes after each decision, and the seconds of the first window, until the run did not wait; the
    share of the seconds that planning took.
    """
    paths = {path.name.removeprefix("seed-"): path for path in sorted(cell.glob("seed-*")) if path.is_dir()}
    runs = {seed: decisions(path) for seed, path in paths.items()}
    rows = {seed: read_decisions(path).values() for seed, path in paths.items()}
    first = {seed: next(row for row in of if not row.get("waits"))["spent"]["seconds"] for seed, of in rows.items()}
    shares = [row["planning"] for rows in runs.values() for row in rows if row["planning"] is not None]
    sizes = {name: [[row["step"], row["after"]] for row in rows] for name, rows in runs.items()}
    return {"sizes": sizes, "first window": first, "planning": statistics.median(shares) if shares else None}


if __name__ == "__main__":
    main()
