"""Cost curves of this machine on the task of the claims: seconds of sampling and of the update by rollouts.

    python benchmarks/step_costs.py --steps 30 --threads 2

Run it alone. Trains configs/claims/harder.toml for a few steps at each pair of n and m, one run after another. It
takes the median of each phase over the steps after the first five. Sampling includes verification, the update includes
selection and log-probs, and the rest of a step is a constant. Writes configs/costs/two_cpu_cores.json, which `winnow
compare --costs` reads, and benchmarks/results/<date>_step_costs.json with every run's phases and the seconds that the
curves predict for the same run.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import frame
import numpy as np

from winnow.algos.costs import CostCurve, StepCosts, StepWork
from winnow.state.costs import as_json
from winnow.state.logbook import read_metrics

COSTS = frame.HERE.parent / "configs" / "costs" / "two_cpu_cores.json"
CONFIG = frame.HERE.parent / "configs" / "claims" / "harder.toml"
PAIRS = ((16, 16), (32, 16), (64, 16), (128, 16), (256, 16), (64, 2), (64, 4), (64, 8), (32, 32), (64, 64))
SAMPLING = ("seconds/generate", "seconds/verify")
UPDATE = ("seconds/select", "seconds/logprobs", "seconds/update")
GENERATED = ("budget/rollouts", "budget/tokens_generated")
TRAINED = ("select/trained", "budget/tokens_trained")
FIRST = 5  # first steps, which are omitted
Row = Mapping[str, float]


def main() -> None:
    options = frame.parse(frame.parser(__doc__, steps=30, threads=2, seed=0))
    runs = {pair: trained(*pair, options.steps, options.threads, options.seed) for pair in PAIRS}
    costs = curves(runs, options.threads)
    (COSTS if not options.quick else Path(os.devnull)).write_text(json.dumps(as_json(costs), indent=1) + "\n")
    report = {"runs": [described(*pair, rows, costs) for pair, rows in runs.items()], "costs": as_json(costs)}
    frame.finish("step_costs", report, options, show=("runs",))


def trained(n: int, m: int, steps: int, threads: int, seed: int) -> Sequence[Row]:
    """The rows of a run's steps, without the first ones."""
    select = '"all"' if m == n else f'{{ use = "max_variance", keep_per_prompt = {m} }}'
    with tempfile.TemporaryDirectory() as home:
        run = Path(home) / "run"
        settings = {
            "rollout.rollouts_per_prompt": n,
            "select": select,
            "steps": steps,
            "threads": threads,
            "seed": seed,
            "evaluate.every": 0,
            "output": run,
        }
        sets = [text for key, value in settings.items() for text in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "winnow", "train", str(CONFIG), *sets]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=CONFIG.parents[2])
        return [row for row in read_metrics(run) if "seconds/step" in row][FIRST:]


def curves(runs: Mapping[tuple[int, int], Sequence[Row]], threads: int) -> StepCosts:
    """Sampling by n with 16 kept rollouts, and the update by the number of kept rollouts of 64 sampled ones."""
    every = [row for rows in runs.values() for row in rows]
    rest = [row["seconds/step"] - _sum(row, (*SAMPLING, *UPDATE)) for row in every]
    return StepCosts(
        sampling=_curve([rows for (_, m), rows in runs.items() if m == 16], SAMPLING, *GENERATED),
        update=_curve([rows for (n, _), rows in runs.items() if n == 64], UPDATE, *TRAINED),
        seconds_per_step=max(0.0, statistics.median(rest)),
        source=f"benchmarks/step_costs.py: {threads} threads on two CPU cores, configs/claims/harder.toml",
    )


def described(n: int, m: int, rows: Sequence[Row], costs: StepCosts) -> dict[str, Any]:
    """A run's phases, and the seconds per step that the curves predict for its work."""
    computed = [costs.seconds(work(row)) for row in rows]
    measured = statistics.fmean(row["seconds/step"] for row in rows)
    return {
        "n": n,
        "m": m,
        "steps": len(rows),
        "measured": round(measured, 4),
        "computed": round(statistics.fmean(computed), 4),
        "ratio": round(statistics.fmean(computed) / measured, 3),
        "phases": {name: round(_median(rows, name), 5) for name in (*SAMPLING, *UPDATE, "seconds/step")},
    }


def work(row: Row) -> StepWork:
    """The work of a row's step."""
    return StepWork(
        prompts=int(row["group/count"]),
        rollouts=row["budget/rollouts"],
        tokens_generated=row["budget/tokens_generated"],
        trained=row["select/trained"],
        tokens_trained=row["budget/tokens_trained"],
    )


def _curve(runs: Sequence[Sequence[Row]], phases: Sequence[str], counted: str, tokens: str) -> CostCurve:
    """A curve through runs with different numbers of rollouts, at their mean length.

    Seconds must not decrease with rollouts: a smaller value is replaced by the larger one before it.
    """
    worked = [[row for row in rows if row[tokens] > 0] for rows in runs]
    every = [row for rows in worked for row in rows]
    length = sum(row[tokens] for row in every) / sum(row[counted] for row in every)
    points = []
    for rows in worked:
        rollouts = statistics.fmean(row[counted] for row in rows)
        per_token = statistics.median(_sum(row, phases) / row[tokens] for row in rows)
        points.append((rollouts, per_token * rollouts * length))
    x, y = (np.array(values) for values in zip(*sorted(points), strict=True))
    return CostCurve(x, np.maximum.accumulate(y), length, mixed_lengths=True)


def _median(rows: Sequence[Row], name: str) -> float:
    return statistics.median(row.get(name, 0.0) for row in rows)


def _sum(row: Row, names: Sequence[str]) -> float:
    return sum(row.get(name, 0.0) for name in names)


if __name__ == "__main__":
    main()
