"""The runs that scripts/demo left behind, as one dated result: accuracy before and after, and what it cost.

scripts/demo 0 1 2 control
python benchmarks/demo.py runs/demo-...
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import dated

from winnow.state.logbook import read_metrics, totals

NAMES = ("eval/accuracy_sampled", "eval/accuracy_sampled_sem", "eval/accuracy_greedy")


def summary(run: Path) -> dict[str, Any]:
    """The first and the last evaluation of a run, and its totals."""
    rows = read_metrics(run)
    evaluated = [row for row in rows if NAMES[0] in row]
    cost = totals(rows)
    kept = ("steps", "seconds/step", "eval/seconds", "budget/updates", "budget/rollouts", "budget/tokens_generated")
    return {
        "start": {name: evaluated[0][name] for name in NAMES},
        "end": {name: evaluated[-1][name] for name in NAMES},
        "cost": {name: cost[name] for name in (*kept, "budget/tokens_trained")},
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    report = {run.name: summary(run) for run in sorted(folder.iterdir()) if (run / "metrics.jsonl").is_file()}
    path = dated.write("demo", {"runs": report}, packages=("torch", "transformers"))
    print(path.read_text(encoding="ascii"))
