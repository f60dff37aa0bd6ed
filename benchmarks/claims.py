"""The result of one claim's sweep: curves and contrasts, under every pair of cost curves.

    winnow sweep configs/sweeps/claim_03_rollouts.toml
    python benchmarks/claims.py claim_03_rollouts --costs configs/costs/two_cpu_cores.json configs/costs/pods_a.json

Reads the registered cells of sweeps/NAME and the entry of benchmarks/claims.toml whose sweep it is, compares as `winnow
compare` does, and writes benchmarks/results/<date>_NAME.json, from which scripts/results.py makes docs/results.md. A
claim with a level in that file is timed to it, and the others to 95% of the plateau of their baseline. Seconds are
recomputed from the costs; those that the runs measured are not used, because two runs shared the machine. A contrast
has no row if the folder lacks one of its cells, and no seconds if the costs omit work of one of them.
"""

from __future__ import annotations

import math
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import frame

from winnow.run_view.configuration import NamedFiles
from winnow.state.cost_files import read_costs
from winnow.state.logbook import read_metrics
from winnow_lab.compare.comparison import BINS, GroupComparison, compare_inputs
from winnow_lab.compare.curve import MeanCurve
from winnow_lab.compare.groups import SeedGroup, omitted_work
from winnow_lab.compare.speed_up import SeedTime, TimeRatio, seed_time, time_ratio

CLAIMS, SWEEPS = frame.HERE / "claims.toml", frame.HERE.parent / "configs" / "sweeps"
MEASURED = "tokens and steps"  # the axis that needs no costs
WORK = (  # metrics of a step; their means describe a cell
    "budget/rollouts", "budget/tokens_generated", "budget/probe_tokens", "budget/tokens_trained", "select/trained",
    "group/flat", "group/count", "rollout/length_mean",
)  # fmt: skip


def main() -> None:
    parser = frame.parser(__doc__)
    parser.add_argument("sweep", help="the name of the sweep, as in benchmarks/claims.toml")
    parser.add_argument("--folder", help="default: sweeps/NAME")
    parser.add_argument("--costs", nargs="+", required=True, help="files that `winnow compare --costs` reads")
    options = frame.parse(parser)
    folder = Path(options.folder or f"sweeps/{options.sweep}")
    claims = [claim for claim in tomllib.loads(CLAIMS.read_text())["claim"] if claim["sweep"] == options.sweep]
    if not claims:
        raise SystemExit(f"{CLAIMS} has no claim with the sweep {options.sweep!r}")
    (claim,) = claims
    files = [Path(name) for name in options.costs]
    named = inputs(options.sweep, folder)
    by_costs = {path.stem: compare_inputs(named, costs=read_costs(path)) for path in files}
    first = next(iter(by_costs.values()))
    report = {
        "claim": claim["number"],
        "sweep": options.sweep,
        "cells": cells(first.groups),
        "costs": {path.stem: read_costs(path).source for path in files},
        "contrasts": [row for path in files for row in contrasts(claim, named, path)],
        "curves": curves(first),
        "seconds": {name: seconds(found) for name, found in by_costs.items()},
        "rollouts by pass rate": {
            label: dict(zip(BINS, (None if one is None else _number(one.mean) for one in found), strict=True))
            for label, found in first.allocation.items()
        },
    }
    frame.finish(options.sweep, report, options, show=("contrasts",))


def inputs(sweep: str, folder: Path) -> list[str]:
    """LABEL=PATH of every cell of the registered sweep that has a folder, its baseline first. Raises SystemExit if none
    has one.
    """
    file = tomllib.loads((SWEEPS / f"{sweep}.toml").read_text(encoding="utf-8"))
    labels = sorted(file["variants"], key=lambda label: label != file["baseline"])
    found = [f"{label}={folder / label}" for label in labels if (folder / label).is_dir()]
    if not found:
        raise SystemExit(f"{folder} has no cell of {sweep}: {', '.join(labels)}")
    return found


def cells(groups: Sequence[SeedGroup]) -> dict[str, Any]:
    """Per cell: its seeds, steps and keys, and the mean work of a step."""
    found = {}
    for group in groups:
        rows = [[row for row in read_metrics(run.path) if "seconds/step" in row] for run in group.runs]
        steps, keys = [row for one in rows for row in one], group.runs[0].keys
        given = {key: of.text if isinstance(of, NamedFiles) else of for key, of in keys.items() if key in KEYS}
        found[group.label] = {
            "seeds": [run.curve.seed for run in group.runs],
            "steps": sorted({len(one) for one in rows}),
            "keys": given,
            "per step": {name: _mean([row[name] for row in steps if name in row]) for name in WORK},
        }
    return found


KEYS = (
    "rollout.rollouts_per_prompt", "rollout.prompts_per_step", "optimizer.learning_rate", "steps", "model.path",
)  # fmt: skip


def contrasts(claim: Mapping[str, Any], named: Sequence[str], path: Path) -> list[dict[str, Any]]:
    """One row per contrast and axis; tokens and steps are listed once, with the first costs."""
    costs, rows = read_costs(path), list[dict[str, Any]]()
    labels = {one.partition("=")[0] for one in named}
    pairs = [pair for pair in claim["contrasts"] if labels.issuperset(pair)]
    for baseline in dict.fromkeys(baseline for baseline, _ in pairs):
        found = compare_inputs(named, baseline=baseline, costs=costs)
        if "level" in claim:
            found = replace(found, times=to_level(found, claim["level"]))
        partial = {group.label for group in found.groups if any(omitted_work(run.config) for run in group.runs)}
        for group in (group for first, group in pairs if first == baseline):
            axes = [axis for axis in claim["axes"] if axis != "seconds" or not partial & {baseline, group}]
            rows += [_row(found, group, axis, path.stem, claim.get("level")) for axis in axes]
    return rows


def to_level(found: GroupComparison, level: float) -> dict[str, tuple[SeedTime, ...]]:
    """label -> the times of its seeds to a level that was fixed beforehand."""
    return {g.label: tuple(seed_time(curve, found.measure, level) for curve in g.curves) for g in found.groups}


def _row(found: GroupComparison, group: str, axis: str, costs: str, level: float | None) -> dict[str, Any]:
    ratio: TimeRatio | None = time_ratio(found.times[found.baseline], found.times[group], axis) if found.times else None
    numbers = {} if ratio is None else {name: _number(getattr(ratio, name)) for name in RATIO}
    sides = {"baseline": found.baseline, "group": group}
    return {
        "baseline": found.baseline,
        "group": group,
        "axis": axis,
        "costs": costs if axis == "seconds" else MEASURED,
        "plateau": _number(found.plateau.value),
        "level": _number(found.plateau.level if level is None else level),
        **numbers,
        "times": {name: _times(found.times.get(label, ()), axis) for name, label in sides.items()},
        "horizon": {name: _horizon(found, label, axis) for name, label in sides.items()},
    }


RATIO = ("ratio", "low", "high", "at_least", "at_most")


def _horizon(found: GroupComparison, label: str, axis: str) -> dict[str, float | None]:
    """seed -> the place of its last evaluation."""
    (group,) = (group for group in found.groups if group.label == label)
    return {str(curve.seed): _number(curve.x[axis][-1]) for curve in group.curves if axis in curve.x}


def _times(times: Sequence[SeedTime], axis: str) -> dict[str, Any]:
    """seed -> when it reached the level, or how it ended."""
    return {str(t.seed): _number(t.x[axis]) if t.reached else t.ending for t in times if axis in t.x}


def curves(found: GroupComparison) -> dict[str, Any]:
    """label -> accuracy over steps with its interval, and the mean tokens at these steps."""
    made = {}
    for group in found.groups:
        curve: MeanCurve = found.curves[group.label, "steps", found.measure]
        made[group.label] = {
            "steps": [_number(x) for x in curve.x],
            "accuracy": [_number(y) for y in curve.mean],
            "low": [_number(y) for y in curve.low],
            "high": [_number(y) for y in curve.high],
            "seeds": {str(c.seed): [_number(y) for y in c.y[found.measure]] for c in group.curves},
            "tokens_generated": [_number(x) for x in _mean_of(group, "tokens_generated")],
            "tokens_trained": [_number(x) for x in _mean_of(group, "tokens_trained")],
        }
    return made


def seconds(found: GroupComparison) -> dict[str, list[float | None]]:
    """label -> the mean seconds under these costs at each evaluation."""
    return {group.label: [_number(x) for x in _mean_of(group, "seconds")] for group in found.groups}


def _mean_of(group: SeedGroup, axis: str) -> list[float]:
    """The mean at each evaluation; empty if the seeds were evaluated at different steps."""
    values = [curve.x[axis].tolist() for curve in group.curves]
    return [statistics.fmean(at) for at in zip(*values, strict=True)] if len({*map(len, values)}) == 1 else []


def _mean(values: Sequence[float]) -> float | None:
    return _number(statistics.fmean(values)) if values else None


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


if __name__ == "__main__":
    main()
