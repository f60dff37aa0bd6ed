"""The runs of scripts/demo as one dated result: accuracy before and after, and the cost.

scripts/demo 0 1 2 control
python benchmarks/demo.py runs/demo-...

With `scripts/demo published 0 1`, the result is demo_published, with the demo's seconds and the two evaluations that it
ends with: of the model before and after training, on the same problems.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import frame

from winnow.state.logbook import read_metrics, totals

NAMES = ("eval/accuracy_sampled", "eval/accuracy_sampled_sem", "eval/accuracy_greedy")


def summary(run: Path) -> dict[str, Any]:
    """The first and the last evaluation of a run, its totals, and its comparison with the model before training."""
    rows = read_metrics(run)
    evaluated = [row for row in rows if NAMES[0] in row]
    cost = totals(rows)
    kept = ("steps", "seconds/step", "eval/seconds", "budget/updates", "budget/rollouts", "budget/tokens_generated")
    compared = run.with_name(f"evaluated-{run.name}")
    return {
        "start": {name: evaluated[0][name] for name in NAMES},
        "end": {name: evaluated[-1][name] for name in NAMES},
        "curve": {str(row["step"]): row[NAMES[0]] for row in evaluated},
        "cost": {name: cost[name] for name in (*kept, "budget/tokens_trained")},
        **({"before": accuracies(compared / "against"), "after": accuracies(compared)} if compared.is_dir() else {}),
    }


def accuracies(folder: Path) -> dict[str, Any]:
    """Accuracies of an evaluation with their 95% intervals, and the share of responses that were cut off."""
    (task,) = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["tasks"].values()
    found = {name: (task["metrics"][f"eval/{name}"], *task["intervals"][name].values()) for name in INTERVALS}
    return {
        "problems": task["problems"],
        "samples": task["rollouts_per_prompt"],
        **{name: dict(zip(("mean", "low", "high"), of, strict=True)) for name, of in found.items()},
        "truncated": task["metrics"]["eval/truncated"],
    }


INTERVALS = ("accuracy_sampled", "accuracy_greedy")


def main() -> None:
    parser = frame.parser(__doc__)
    parser.add_argument("folder", type=Path)
    folder = frame.parse(parser).folder
    seconds = folder / "seconds.json"
    runs = {run.name: summary(run) for run in sorted(folder.iterdir()) if (run / "metrics.jsonl").is_file()}
    report = {"runs": runs, **({"seconds": json.loads(seconds.read_text())} if seconds.is_file() else {})}
    name = "demo_published" if any("after" in run for run in runs.values()) else "demo"
    frame.finish(name, report, show=("runs",))


if __name__ == "__main__":
    main()
