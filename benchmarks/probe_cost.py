"""What share of a window's seconds does GVM's probe take?

    python benchmarks/probe_cost.py

Runs configs/gvm_grpo.toml (N' = 8, N = 16, a probe every 8 steps) for whole windows, once with each gradient norm,
and reads the seconds that the run itself reports: the probe's (sampling, scoring, norms, planning) over those of the
probe and the window's steps together. Evaluation and checkpoints are left out. Writes
benchmarks/results/<date>_probe_cost.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import dated

from winnow.config import load
from winnow.fit import fit
from winnow.members import resolve_members
from winnow.state.logbook import read_metrics

CONFIG = Path(__file__).parents[1] / "configs" / "gvm_grpo.toml"
GOALS = {"embedding": 0.20, "output_head": 0.10}


def main() -> None:
    options = _options()
    found = {of: measure(of, options) for of in GOALS}
    report = {"settings": vars(options), "config": f"configs/{CONFIG.name}", "gradient_norm": found}
    print(json.dumps(found, indent=1))
    print(f"written: {dated.write('probe_cost', report, packages=('winnow-rl', 'torch', 'transformers'))}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for key, value in {"windows": 2, "every": 8, "probe": 8, "rollouts": 16, "threads": 1}.items():
        parser.add_argument(f"--{key}", type=int, default=value)
    return parser.parse_args()


def measure(of: str, options: argparse.Namespace) -> dict[str, Any]:
    """The probe's share in each window of one run, and in all of them together."""
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
    seconds = [(w[0]["seconds/probe"], sum(row["seconds/step"] for row in w)) for w in windows]
    probe, steps = map(sum, zip(*seconds, strict=True))
    return {
        "share": round(probe / (probe + steps), 4),
        "goal": GOALS[of],
        "share_by_window": [round(p / (p + s), 4) for p, s in seconds],
        "over_steps": round(probe / steps, 4),
        "probe_seconds": [round(p, 2) for p, _ in seconds],
        "step_seconds": [round(s, 2) for _, s in seconds],
        "probe_tokens": [int(w[0]["budget/probe_tokens"]) for w in windows],
        "step_tokens": [int(sum(row["budget/tokens_generated"] for row in w)) for w in windows],
    }


if __name__ == "__main__":
    main()
