"""The cost of learning the default task with PPO and with GRPO, and the explained variance of PPO's values.

    python benchmarks/ppo.py FOLDER [--variants ppo grpo] [--seeds 3]

Trains each variant and seed into FOLDER/<variant>-<seed>; an existing run is read, not trained again. "at" is the
first evaluation (every 5 steps; 256 held-out problems, 4 samples of each) of at least 0.85, and the tokens
generated before it; "against_grpo" is the ratio to GRPO's of the same seed. Explained variance is relative to
Monte-Carlo returns, averaged over each third of a run. "frozen" does not change the policy, and "slow" learns so slowly
that its accuracy is still far from 0 and 1 at the end. Writes benchmarks/results/<date>_ppo.json.
"""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import frame

from winnow.config_file import load
from winnow.recipes import FOLDER, recipe_paths
from winnow.state.logbook import read_metrics
from winnow.training.fit import fit
from winnow.training.resolve import resolve_members

ENOUGH = 0.85
EVALUATED = {"every": 5, "problems": 256, "rollouts_per_prompt": 4, "greedy": False}
SHARED = {"form": "shared"}
FROZEN = {
    "form": "model", "clip_range": 0.0, "epochs": 2, "updates_per_step": 4, "pretraining_steps": 80,
    "optimizer": {"learning_rate": 1e-3, "schedule": "cosine"},
}  # fmt: skip
MANY = {"rollout.prompts_per_step": 32, "rollout.rollouts_per_prompt": 16}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # a configuration, and the keys that are replaced
    "grpo": ("grpo", {}),
    "ppo": ("ppo", {}),
    "ppo_pods": ("ppo_pods", {}),
    "ppo_shared": ("ppo", {"critic": SHARED}),
    "ppo_pods_shared": ("ppo_pods", {"critic": SHARED}),
    "frozen": (
        "ppo",
        {"critic": FROZEN, "steps": 80, "rollout.prompts_per_step": 32, "rollout.rollouts_per_prompt": 16},
    ),
    "slow": ("ppo", {"optimizer.learning_rate": 3e-5, "update.updates_per_step": 1}),
}


def main() -> None:
    parser = frame.parser(__doc__, threads=1, seeds=3)
    parser.add_argument("folder")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="NAME")
    options = frame.parse(parser)
    found: dict[str, Any] = {}
    for name in options.variants:
        runs = [
            _run(Path(options.folder) / f"{name}-{seed}", name, seed, options.threads) for seed in range(options.seeds)
        ]
        found[name] = {"runs": runs, **_together(runs, found.get("grpo", {}).get("runs"))}
        print(name, json.dumps(found[name]), flush=True)
    frame.finish("ppo", {"variants": found}, options)


def _run(folder: Path, name: str, seed: int, threads: int) -> dict[str, Any]:
    if not (folder / "checkpoints").is_dir():
        config, changes = VARIANTS[name]
        changes = {"steps": 40, **{f"evaluate.{key}": value for key, value in EVALUATED.items()}, **changes}
        changes |= {"seed": seed, "threads": threads, "output": str(folder)}
        loaded = load(recipe_paths()[config], [f"{key}={_toml(value)}" for key, value in changes.items()])
        fit(resolve_members(loaded, base=FOLDER))
    return _read(read_metrics(folder))


def _read(rows: list[dict[str, float]]) -> dict[str, Any]:
    tokens, at = 0.0, None
    for row in rows:
        if at is None and row.get("eval/accuracy_sampled", 0.0) >= ENOUGH:
            at = {"step": row["step"], "tokens": tokens, "accuracy": round(row["eval/accuracy_sampled"], 3)}
        tokens += row.get("budget/tokens_generated", 0.0)
    explained = [v for row in rows if not math.isnan(v := row.get("critic/explained_variance", math.nan))]
    third = len(explained) // 3
    accuracies = [row["eval/accuracy_sampled"] for row in rows if "eval/accuracy_sampled" in row]
    return {
        "at": at,
        "accuracies": [round(accuracy, 3) for accuracy in accuracies],
        "tokens": tokens,
        "explained_variance_by_thirds": [
            round(statistics.mean(explained[third * i : third * (i + 1)]), 3) for i in range(3) if third
        ],
        "seconds": round(sum(row.get("seconds/step", 0.0) for row in rows)),
    }


def _together(runs: list[dict[str, Any]], grpo: list[dict[str, Any]] | None) -> dict[str, Any]:
    if grpo is None or any(run["at"] is None for run in (*runs, *grpo)):
        return {}
    pairs = zip(runs, grpo, strict=False)
    return {"against_grpo": [round(run["at"]["tokens"] / other["at"]["tokens"], 2) for run, other in pairs]}


def _toml(value: Any) -> str:
    """A value in the syntax of `--set`, which is JSON except for tables."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(of)}" for key, of in value.items()) + "}"
    return json.dumps(value)


if __name__ == "__main__":
    main()
