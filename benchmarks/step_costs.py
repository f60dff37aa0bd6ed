"""Cost curves of this machine on the task of the claims: seconds of sampling and of the update by rollouts.

    python benchmarks/step_costs.py

Run it alone: other processes may use at most 5% of the processor during any run, which is counted over the whole of
each run and recorded. Trains configs/claims/harder.toml for a few steps at each pair of n and m, one run after another,
in two rounds with different seeds. The curves are from the first round: the seconds per token at each number of
rollouts, over the steps after the first five. Sampling includes verification, the update includes selection and
log-probs, and the rest of a step is a constant. The second round is the check: at every pair, the seconds that the
curves compute for its steps must be within 10% of the measured ones. Always writes
benchmarks/results/<date>_step_costs.json. Writes configs/costs/two_cpu_cores.json, which `winnow compare --costs`
reads, only if both conditions hold, and exits with 1 otherwise.
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
from winnow.state.cost_files import as_json
from winnow.state.logbook import read_metrics

COSTS = frame.HERE.parent / "configs" / "costs" / "two_cpu_cores.json"
CONFIG = frame.HERE.parent / "configs" / "claims" / "harder.toml"
PAIRS = ((16, 16), (32, 16), (64, 16), (128, 16), (256, 16), (64, 2), (64, 4), (64, 8), (32, 32), (64, 64))
SAMPLING = ("seconds/generate", "seconds/verify")
UPDATE = ("seconds/select", "seconds/logprobs", "seconds/update")
GENERATED = ("budget/rollouts", "budget/tokens_generated")
TRAINED = ("select/trained", "budget/tokens_trained")
FIRST = 5  # first steps, which are omitted
MOST_OTHERS = 0.05  # of the processor, for the processes that are not part of a run
WITHIN = 0.10  # of the measured seconds
IDLE = slice(3, 5)  # of the fields of /proc/stat: idle, and waiting for the disk
Row = Mapping[str, float]
Pair = tuple[int, int]


def main() -> None:
    options = frame.parse(frame.parser(__doc__, steps=45, threads=2, seed=0))
    others: dict[str, float] = {}
    rounds = [measured(options, options.seed + number, others) for number in (0, 1)]
    costs = curves(rounds[0], options.threads)
    check = [described(*pair, rows, costs) for pair, rows in rounds[1].items()]
    problems = refusals(check, others)
    ratios = [row["ratio"] for row in check]
    stored = as_json(costs) | {"check": {"lowest": min(ratios), "highest": max(ratios), "others": max(others.values())}}
    report = {
        "runs": check,
        "curve's own runs": [described(*pair, rows, costs) for pair, rows in rounds[0].items()],
        "share of other processes": {name: round(share, 4) for name, share in others.items()},
        "refused": problems,
        "costs": stored,
    }
    frame.finish("step_costs", report, options, show=("runs", "share of other processes"))
    if options.quick:  # a few steps on a machine that may be busy: no measurement
        return
    if problems:
        sys.exit("the costs are refused, and no file of costs is written:\n" + "\n".join(problems))
    COSTS.write_text(json.dumps(stored, indent=1) + "\n")
    print(f"written: {COSTS.relative_to(COSTS.parents[2])}")


def refusals(check: Sequence[Mapping[str, Any]], others: Mapping[str, float]) -> list[str]:
    """The reasons why costs are no measurement: runs that were not alone, and pairs that the curves do not describe."""
    busy = [
        f"{name}: other processes used {share:.1%} of the processor, and {MOST_OTHERS:.0%} is the most; stop them, and "
        "measure again"
        for name, share in others.items()
        if share > MOST_OTHERS
    ]
    wrong = [
        f"n = {row['n']}, m = {row['m']}: computed over measured is {row['ratio']}, more than {WITHIN:.0%} from 1"
        for row in check
        if abs(row["ratio"] - 1) > WITHIN
    ]
    return busy + wrong


def measured(options: Any, seed: int, others: dict[str, float]) -> dict[Pair, Sequence[Row]]:
    """The rows of one run per pair. Adds the share of the other processes during each run to `others`."""
    found = {}
    for n, m in PAIRS:
        before = processor()
        found[n, m] = trained(n, m, options.steps, options.threads, seed)
        others[f"seed {seed}, n = {n}, m = {m}"] = share_of_others(before, processor())
    return found


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


def processor() -> tuple[float, float, float]:
    """(seconds of all cores, seconds in which they were busy, seconds used by this process and its ended children)."""
    fields = [
        float(text) / os.sysconf("SC_CLK_TCK") for text in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
    ]
    return sum(fields), sum(fields) - sum(fields[IDLE]), sum(os.times()[:4])


def share_of_others(before: Sequence[float], after: Sequence[float]) -> float:
    """The share of the processor that other processes used between two readings; what a hypervisor took is theirs."""
    whole, busy, own = (end - start for start, end in zip(before, after, strict=True))
    return max(0.0, busy - own) / whole


def curves(runs: Mapping[Pair, Sequence[Row]], threads: int) -> StepCosts:
    """Sampling by n with 16 kept rollouts, and the update by the number of kept rollouts: of 64 sampled, and of 32."""
    every = [row for rows in runs.values() for row in rows]
    rest = [row["seconds/step"] - _sum(row, (*SAMPLING, *UPDATE)) for row in every]
    return StepCosts(
        sampling=_curve([rows for (_, m), rows in runs.items() if m == 16], SAMPLING, *GENERATED),
        update=_curve([rows for (n, m), rows in runs.items() if n == 64 or n == m == 32], UPDATE, *TRAINED),
        seconds_per_step=max(0.0, statistics.median(rest)),
        source=f"benchmarks/step_costs.py: {threads} threads on two CPU cores, alone, configs/claims/harder.toml",
    )


def described(n: int, m: int, rows: Sequence[Row], costs: StepCosts) -> dict[str, Any]:
    """A run's phases, and the seconds per step that the curves predict for its work."""
    computed = statistics.fmean(costs.seconds(work(row)) for row in rows)
    seconds = statistics.fmean(row["seconds/step"] for row in rows)
    return {
        "n": n,
        "m": m,
        "steps": len(rows),
        "measured": round(seconds, 4),
        "computed": round(computed, 4),
        "ratio": round(computed / seconds, 3),
        "phases": {name: round(_mean(rows, name), 5) for name in (*SAMPLING, *UPDATE, "seconds/step")},
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
    """A curve through runs with different numbers of rollouts, at their mean length. Steps without work are omitted."""
    worked = [[row for row in rows if row[tokens] > 0] for rows in runs]
    every = [row for rows in worked for row in rows]
    length = sum(row[tokens] for row in every) / sum(row[counted] for row in every)
    points = []
    for rows in worked:
        rollouts = statistics.fmean(row[counted] for row in rows)
        per_token = sum(_sum(row, phases) for row in rows) / sum(row[tokens] for row in rows)
        points.append((rollouts, per_token * rollouts * length))
    x, y = (np.array(values) for values in zip(*sorted(points), strict=True))
    return CostCurve(x, y, length, mixed_lengths=True)


def _mean(rows: Sequence[Row], name: str) -> float:
    return statistics.fmean(row.get(name, 0.0) for row in rows)


def _sum(row: Row, names: Sequence[str]) -> float:
    return sum(row.get(name, 0.0) for name in names)


if __name__ == "__main__":
    main()
