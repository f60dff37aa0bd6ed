"""The runs of scripts/demo as one dated result: accuracy before and after, and the cost.

scripts/demo 0 1 2 control
python benchmarks/demo.py runs/demo-...
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import frame

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


def main() -> None:
    parser = frame.parser(__doc__)
    parser.add_argument("folder", type=Path)
    folder = frame.parse(parser).folder
    report = {run.name: summary(run) for run in sorted(folder.iterdir()) if (run / "metrics.jsonl").is_file()}
    frame.finish("demo", {"runs": report}, show=("runs",))


if __name__ == "__main__":
    main()
