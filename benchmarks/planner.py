"""How good is the planner's choice of n and m? Its regret among trained cells, and the error of its seconds.

    python benchmarks/planner.py SWEEP [SWEEP ...] --baseline LABEL [--costs FILE] [--pilot LABEL]

Every label of the sweeps is a cell, which differs from the others in rollout.rollouts_per_prompt and
select.keep_per_prompt. Times are seconds of training to 95% of the plateau of --baseline, seed by seed, as in
`winnow compare`. The planner reads the first --steps steps of the --pilot label (by default the baseline) of the same
seed, and ranks the cells. Its regret is the time of the cell that it ranks first, divided by the best cell's time.

`planner` is the default of `winnow plan RUN --costs FILE`; the other way of planning changes one thing. `page` follows
docs/choosing-n-and-m.md: n by its table for the mean pass rate of the pilot's steps, m = n / 4, the nearest cell.

--costs reads curves from a file. For measured times, `winnow profile CONFIG --output FILE` on the same machine makes
one, and the planner scales it to the pilot's seconds. With --as-measured the file's seconds are used unscaled: all
times are computed from them, and the result does not depend on this machine. Writes
benchmarks/results/<date>_planner.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import frame
import numpy as np
from planner_regret import by_the_page, nearest, over_seeds, regrets

from winnow.algos.costs import StepCosts, StepWork
from winnow.algos.planning import Noise
from winnow.algos.step_plan import NOISE, SPREAD, Prediction, Setting
from winnow.config import Config
from winnow.config_file import load
from winnow.metrics import is_step
from winnow.state.logbook import read_metrics
from winnow_lab.compare.comparison import compare_inputs
from winnow_lab.costs import read_costs
from winnow_lab.plan.evidence import COUNTS, PHASES, evidence_of
from winnow_lab.plan.from_log import LogPlan
from winnow_lab.plan.memory import PlanRequest
from winnow_lab.plan.setting import setting_of
from winnow_lab.sweep_folder import SweepRun, read_sweep

WITHIN = 0.15  # relative to the measured seconds of a step


@dataclass(frozen=True)
class Cell:
    """A label of a sweep, with its configuration and runs."""

    config: Config
    setting: Setting
    runs: Mapping[str, SweepRun]  # seed -> run


def main() -> None:
    options = _options()
    costs = read_costs(Path(options.costs))
    cells = dict(_cells(options.sweeps, options.cells))
    found = compare_inputs(
        [f"{label}={run.path}" for label, cell in cells.items() for run in cell.runs.values()],
        baseline=options.baseline,
        costs=costs if options.as_measured else None,
    )
    level = found.plateau.level
    if level is None:
        raise SystemExit(f"{options.baseline}: its plateau is not above 0")
    if any(one.ending == "at the first" for of in found.times.values() for one in of):
        raise SystemExit(f"a cell is above the level of {level:.3f} at its first evaluation")
    times = {
        label: {str(one.seed): one.x["seconds"] if one.ending != "never" else np.inf for one in found.times[label]}
        for label in cells
    }
    ways: dict[str, dict[str, Any]] = {"planner": {}, "planner, one learning rate": {"law": "fixed"}}
    pilot = cells[options.pilot or options.baseline]
    choices: dict[str, dict[str, str]] = {name: {} for name in (*ways, "page")}
    orders, seconds, rates = {}, {}, {}
    for seed, run in pilot.runs.items():
        for name, changes in ways.items():
            plan = _plan(run, costs, options, **changes)
            order = _order(plan, cells)
            choices[name][seed] = next(iter(order))
            if name == "planner":
                orders[seed], rates[seed] = order, plan.statistics.mixture.mean
                seconds[seed] = _seconds(plan, costs, cells, seed, options)
        settings = {label: cell.setting for label, cell in cells.items()}
        choices["page"][seed] = nearest(settings, *by_the_page(rates[seed]))
    report = {
        "level": level,
        "still_rising": found.plateau.still_rising,
        "cells": {label: vars(cell.setting) for label, cell in cells.items()},
        "times": {label: {seed: _number(t) for seed, t in of.items()} for label, of in times.items()},
        "mean_times": {label: _number(value) for label, value in over_seeds(times).items()},
        "pass_rates": rates,
        "orders": orders,
        "regret": regrets(times, choices),
        "seconds_per_step": _errors(seconds),
    }
    frame.finish("planner", report, options, show=("mean_times", "regret", "seconds_per_step"))


def _options() -> argparse.Namespace:
    parser = frame.parser(__doc__, steps=(20, "first steps of the pilot that the planner reads"))
    parser.add_argument("sweeps", nargs="+", metavar="SWEEP")
    parser.add_argument("--baseline", required=True, metavar="LABEL")
    parser.add_argument("--pilot", metavar="LABEL", help="by default the baseline")
    parser.add_argument(
        "--cells", nargs="+", metavar="LABEL", help="by default all; only seeds that all of them have are used"
    )
    parser.add_argument("--costs", required=True, metavar="FILE")
    for name, value, meaning in (
        ("noise", NOISE.rollout, "of a rollout's gradient, by benchmarks/gradient_noise.py"),
        ("between", NOISE.between, "of prompts' gradients, by the same"),
        ("spread", SPREAD, "of the gradient over the weights, by the same"),
    ):
        parser.add_argument(f"--{name}", type=float, default=value, help=meaning)
    parser.add_argument("--as-measured", action="store_true", help="use the file's seconds unscaled")
    return frame.parse(parser)


def _cells(sweeps: Sequence[str], labels: Sequence[str] | None) -> Iterator[tuple[str, Cell]]:
    """Finished runs by label and seed. If several sweeps have one, that of the first sweep is used."""
    runs: dict[str, dict[str, SweepRun]] = {}
    for run in (run for sweep in sweeps for run in read_sweep(Path(sweep))):
        if run.finished and (labels is None or run.label in labels):
            runs.setdefault(run.label, {}).setdefault(str(run.seed), run)
    if lacking := set(labels or ()) - set(runs):
        raise SystemExit(f"no finished run of {', '.join(sorted(lacking))}")
    seeds = set.intersection(*(set(of) for of in runs.values()))
    for label, of in runs.items():
        config = load(next(iter(of.values())).settings)
        yield label, Cell(config, setting_of(config, label), {seed: of[seed] for seed in sorted(seeds)})


def _plan(run: SweepRun, costs: StepCosts, options: argparse.Namespace, **changes: Any) -> LogPlan:
    asked = PlanRequest(
        calibrate=not options.as_measured,
        noise=Noise(options.noise, options.between),
        spread=options.spread,
        **changes,
    )
    return LogPlan(evidence_of(run.path, window=options.steps, before=options.steps), asked, costs, draws=0)


def _predicted(plan: LogPlan, cell: Cell) -> Prediction:
    setting, clock = cell.setting, plan.clock(plan.statistics)
    return plan.model.predict(setting, plan.statistics, clock, at_once=plan.at_once(setting))


def _order(plan: LogPlan, cells: Mapping[str, Cell]) -> dict[str, float]:
    """Progress per second of each cell, in descending order."""
    rates = {label: _predicted(plan, cell).rate for label, cell in cells.items()}
    return dict(sorted(rates.items(), key=lambda item: -item[1]))


def _seconds(
    plan: LogPlan, costs: StepCosts, cells: Mapping[str, Cell], seed: str, options: argparse.Namespace
) -> dict[str, tuple[float, float]]:
    """(predicted, measured) seconds of a step of each cell, over the steps that the planner read of the pilot."""
    found = {}
    for label, cell in cells.items():
        run = cell.runs[seed]
        rows = [row for row in read_metrics(run.path) if is_step(row) and row["step"] < options.steps]
        if options.as_measured:
            taken = [costs.seconds(_work(row, cell.config)) for row in rows]
        else:
            taken = [sum(row[f"seconds/{name}"] for name in PHASES) for row in rows if row["step"] > 0]
        found[label] = (_predicted(plan, cell).seconds.total, float(np.mean(taken)))
    return found


def _work(row: Mapping[str, float], config: Config) -> StepWork:
    prompts, rollouts, generated, trained, tokens = (row[name] for name in COUNTS)
    return StepWork(int(prompts), rollouts, generated, config.update.epochs * trained, config.update.epochs * tokens)


def _errors(seconds: Mapping[str, Mapping[str, tuple[float, float]]]) -> dict[str, Any]:
    """Predicted over measured seconds, by label and seed, and how many are within WITHIN of 1."""
    ratios = {
        seed: {label: round(predicted / taken, 4) for label, (predicted, taken) in of.items()}
        for seed, of in seconds.items()
    }
    every = np.array([ratio for of in ratios.values() for ratio in of.values()])
    return {
        "predicted_over_taken": ratios,
        "median": float(np.median(every)),
        "largest_error": float(np.abs(every - 1).max()),
        "share_within": float((np.abs(every - 1) <= WITHIN).mean()),
    }


def _number(value: float) -> float | None:
    return round(float(value), 2) if np.isfinite(value) else None


if __name__ == "__main__":
    main()
