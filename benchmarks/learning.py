"""Does every configuration learn, and what did it pay? Sampled held-out accuracy before and after, over seeds.

    python benchmarks/learning.py                                   every documented configuration at its own length
    python benchmarks/learning.py --steps 16 --problems 256         shorter, and a smaller held-out set
    python benchmarks/learning.py --configs grpo gvm_grpo --seeds 1

Accuracies are at the training temperature, on problems that no run trains on. The gain is end minus start of the same
run; its 95% interval is Student's over the seeds. Beside it stands what the runs paid, per run: optimizer updates,
rollouts, tokens and seconds, the probe's included, evaluation left out. Configurations differ in updates per step, so
steps alone compare nothing. Writes benchmarks/results/<date>_learning.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import frame

from winnow.config_file import load
from winnow.state.logbook import read_metrics, totals
from winnow.training.fit import fit
from winnow.training.resolve import resolve_members

CONFIGS = Path(__file__).parents[1] / "configs"
NAMES = (
    "grpo", "dr_grpo", "pods", "raft", "raft_plus_plus", "gvm_grpo", "gvm_raft_plus_plus", "gvm_pods"
)  # fmt: skip
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}  # 97.5%

Run = dict[str, float]


def main() -> None:
    options = _options()
    found: dict[str, Any] = {}
    for name in options.configs:
        found[name] = summary([_run(name, seed, options) for seed in range(options.seeds)])
        print(_line(name, found[name]), flush=True)
    frame.finish("learning", {"configs": found}, options)


def _options() -> argparse.Namespace:
    parser = frame.parser(__doc__, threads=1)
    parser.add_argument("--configs", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--seeds", type=int, choices=range(1, 11), default=3, metavar="N", help="runs of each")
    parser.add_argument("--steps", type=int, help="instead of the configuration's own")
    parser.add_argument("--problems", type=int, help="held-out problems, instead of the configuration's own")
    return frame.parse(parser)


def _run(name: str, seed: int, options: argparse.Namespace) -> Run:
    """Train once; the accuracies at both ends, and what lay between them."""
    changes = {"steps": options.steps, "evaluate.problems": options.problems, "evaluate.greedy": False}
    with tempfile.TemporaryDirectory(prefix="winnow-learning-") as folder:
        changes |= {"seed": seed, "threads": options.threads, "output": f"{folder}/run"}
        sets = [f"{key}={json.dumps(value)}" for key, value in changes.items() if value is not None]
        result = fit(resolve_members(load(CONFIGS / f"{name}.toml", sets), base=CONFIGS))
        rows = read_metrics(result.folder)
    spent = totals(rows)
    accuracies = [row["eval/accuracy_sampled"] for row in rows if "eval/accuracy_sampled" in row]
    return {
        "start": accuracies[0],
        "end": accuracies[-1],
        "updates": spent["budget/updates"],
        "rollouts": spent["budget/rollouts"] + spent.get("budget/probe_rollouts", 0.0),
        "tokens": spent["budget/tokens_generated"] + spent.get("budget/probe_tokens", 0.0),
        "probe_tokens": spent.get("budget/probe_tokens", 0.0),
        "seconds": spent["seconds/step"] + spent.get("seconds/probe", 0.0),
    }


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """Means with 95% half-widths over the runs, and the mean price of one."""
    ends = {key: interval([run[key] for run in runs]) for key in ("start", "end")}
    gain = interval([run["end"] - run["start"] for run in runs])
    price = {key: round(statistics.mean(run[key] for run in runs), 1) for key in runs[0] if key not in ends}
    return {**ends, "gain": gain, "learns": len(runs) > 1 and gain[0] - gain[1] > 0, **price, "runs": runs}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean and half of its 95% interval (Student's t); 0 for a single value, which has none."""
    if len(values) < 2:
        return round(values[0], 4), 0.0
    half = STUDENT[len(values) - 1] * statistics.stdev(values) / len(values) ** 0.5
    return round(statistics.mean(values), 4), round(half, 4)


def _line(name: str, found: dict[str, Any]) -> str:
    ends = ", ".join(f"{key} {found[key][0]:.3f} +- {found[key][1]:.3f}" for key in ("start", "end", "gain"))
    price = ", ".join(f"{found[key]:.0f} {key}" for key in ("updates", "rollouts", "tokens", "probe_tokens", "seconds"))
    return f"{name:20} {ends}; {price}"


if __name__ == "__main__":
    main()
