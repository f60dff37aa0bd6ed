"""What share of a window's seconds does GVM's probe take?

    python benchmarks/probe_cost.py

Runs configs/gvm_grpo.toml (N' = 8, N = 16, a probe every 8 steps) for whole windows with each gradient norm in turn,
and reads the seconds that the run itself reports: the probe's (sampling, scoring, norms, planning) over those of the
probe and the window's steps together, as the median over windows. Evaluation and checkpoints are left out. Writes
benchmarks/results/<date>_probe_cost.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dated

from winnow.config import load
from winnow.state.logbook import read_metrics
from winnow.training.fit import fit
from winnow.training.resolve import resolve_members

CONFIG = Path(__file__).parents[1] / "configs" / "gvm_grpo.toml"
Window = dict[str, float]
GOALS = {"embedding": 0.20, "output_head": 0.10}


def main() -> None:
    options = _options()
    windows: dict[str, list[Window]] = {of: [] for of in GOALS}
    for _ in range(options.rounds):  # in turn, so that a busy machine slows both
        for of, found in windows.items():
            found += run_windows(of, options)
    found_by_norm = {of: summary(found, GOALS[of]) for of, found in windows.items()}
    report = {"settings": vars(options), "config": f"configs/{CONFIG.name}", "gradient_norm": found_by_norm}
    print(json.dumps(found_by_norm, indent=1))
    print(f"written: {dated.write('probe_cost', report, packages=('winnow-rl', 'torch', 'transformers'))}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for key, value in {"rounds": 2, "windows": 2, "every": 8, "probe": 8, "rollouts": 16, "threads": 1}.items():
        parser.add_argument(f"--{key}", type=int, default=value)
    return parser.parse_args()


def run_windows(of: str, options: argparse.Namespace) -> list[Window]:
    """What the windows of one run took."""
    with tempfile.TemporaryDirectory(prefix="winnow-probe-cost-") as folder:
        changes = {
            "steps": options.windows * options.every,
            "threads": options.threads,
            "output": f"{folder}/run",
            "rollout.rollouts_per_prompt": options.rollouts,
            "probe.every": options.every,
            "probe.rollouts_per_prompt": options.probe,
            "probe.gradient_norm": of,
            "evaluate.problems": 2,
        }
        sets = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
        result = fit(resolve_members(load(CONFIG, sets), base=CONFIG.parent))
        rows = [row for row in read_metrics(result.folder) if "seconds/step" in row]
    windows = [rows[i : i + options.every] for i in range(0, len(rows), options.every)]
    return [
        {
            "probe_seconds": window[0]["seconds/probe"],
            "step_seconds": sum(row["seconds/step"] for row in window),
            "probe_tokens": window[0]["budget/probe_tokens"],
            "step_tokens": sum(row["budget/tokens_generated"] for row in window),
        }
        for window in windows
    ]


def summary(windows: Sequence[Window], goal: float) -> dict[str, Any]:
    """The median share over all windows, and what it is made of."""
    shares = [w["probe_seconds"] / (w["probe_seconds"] + w["step_seconds"]) for w in windows]
    share = statistics.median(shares)
    parts = {key: [round(w[key], 2) for w in windows] for key in windows[0]}
    return {
        "share": round(share, 4),
        "goal": goal,
        "met": share <= goal,
        "shares": [round(s, 4) for s in shares],
        **parts,
    }


if __name__ == "__main__":
    main()
