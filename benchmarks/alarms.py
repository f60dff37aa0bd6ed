#!/usr/bin/env python
"""The alarms of every documented configuration (expected: none), and of runs with a mistake (expected: one each).

Each healthy configuration is run at its full length, and the recipe arithmetic with one mistake at a time. The
metrics that the rules read are saved as a fixture, rounded to six digits, so that a test can apply the rules without
running anything. A run whose folder exists is read, not repeated.

    python benchmarks/alarms.py FOLDER                      # about an hour on two cores
    python benchmarks/alarms.py FOLDER --fixture tests/fixtures/healthy_runs.json.gz
    python benchmarks/alarms.py FOLDER --only --ill-fixture tests/fixtures/ill_runs.json.gz    # about 4 minutes
    python benchmarks/alarms.py FOLDER --only gvm_grpo gvm_pods --fixture ...   # others stay in the fixture as they are
"""

from __future__ import annotations

import gzip
import json
import math
import re
import statistics
import time
from pathlib import Path
from typing import Any

import frame

import winnow
from winnow.alarms.rules import ALARMS
from winnow.alarms.watch import alarms_of_run
from winnow.config import dump
from winnow.config_file import load, validate
from winnow.models.load import load as load_model
from winnow.recipes import FOLDER, recipe_paths
from winnow.state.logbook import read_metrics
from winnow.training.fit import fit
from winnow.training.resolve import resolve_members

HEALTHY = [name for name in recipe_paths() if name != "gsm8k"]  # gsm8k needs a model and data
READ = sorted({re.sub(r"\{\w+\}", "", name) for kind in ALARMS for name in kind.reads} | {"step", "budget/rollouts"})

SMALL: dict[str, Any] = {
    "threads": 1,
    "device": "cpu",
    "model": "bundled",
    "task": {"use": "arithmetic", "levels": [2, 3], "size": 64},
    "reward": "r1_zero",
    "select": "all",
    "rollout": {"prompts_per_step": 12, "rollouts_per_prompt": 8, "max_new_tokens": 24},
    "evaluate": {"problems": 2, "rollouts_per_prompt": 2},
    "verify": {"workers": 0},
    "log": {"rollouts": "none"},
}
BUILT: dict[str, dict[str, Any]] = {  # runs with too many steps for a test; the others: test_alarms.py
    "sudden_drop": {  # a learning rate that grows until it destroys the policy
        "steps": 45,
        "optimizer": {"learning_rate": 0.05, "warmup_steps": 400, "max_grad_norm": 100.0},
    },
    "no_learning": {"steps": 110, "optimizer": {"learning_rate": 1e-9}},
}
GRID = "the bundled policy, rounded to bfloat16"  # in the place of a path
MISTAKES: dict[str, dict[str, Any]] = {  # changes to the recipe arithmetic
    "diverged": {"steps": 40, "optimizer.learning_rate": 0.05},
    "gamed": {  # an early end earns more than a right answer
        "steps": 80,
        "reward": '{parts = [{use = "r1_zero"}, {use = "length", weight = 5.0, limit_tokens = 40, slope_tokens = 40}]}',
    },
    "lagging": {  # a copy in bfloat16 of a policy that starts on bfloat16 values, and updates that it rounds away
        "steps": 16,
        "model.path": GRID,
        "model.dtype": "float32",
        "rollout.engine": '{use = "native", dtype = "bfloat16"}',
        "optimizer.learning_rate": 1e-5,
    },
    "shuffled": {"advantage": f"'{frame.HERE.parent / 'examples' / 'shuffled_rewards.py'}:shuffled'"},
}


def main() -> None:
    parser = frame.parser(__doc__, threads=1, seeds=2)
    parser.add_argument("folder")
    parser.add_argument("--fixture", help="write the metrics of the healthy runs that the rules read")
    parser.add_argument("--ill-fixture", help="write the metrics of the runs with a mistake that the rules read")
    parser.add_argument("--ill", nargs="*", choices=MISTAKES, default=list(MISTAKES), help="runs with a mistake")
    parser.add_argument("--only", nargs="*", choices=HEALTHY, default=HEALTHY, help="healthy configurations to run")
    options = frame.parse(parser)
    folder = Path(options.folder)
    healthy, rows_of = dict[str, Any](), dict[str, list[dict[str, float]]]()
    for seed in range(options.seeds):
        for name in options.only:
            key = f"{name}-s{seed}"
            rows_of[key], config = _run(folder / key, name, {"seed": seed, "threads": options.threads})
            healthy[key] = _judged(rows_of[key], config)
            print(key, json.dumps(healthy[key]), flush=True)
    built = {name: _built(folder / f"built-{name}", changes) for name, changes in BUILT.items()}
    print(json.dumps(built), flush=True)
    ill, ill_rows = dict[str, Any](), dict[str, list[dict[str, float]]]()
    for name in options.ill:
        changes = {"threads": options.threads, **MISTAKES[name]}
        if changes.get("model.path") == GRID:
            changes["model.path"] = f'"{_on_the_grid(folder / "model")}"'
        ill_rows[name], config = _run(folder / f"ill-{name}", "arithmetic", changes)
        ill[name] = _judged(ill_rows[name], config)
        print(name, json.dumps(ill[name]), flush=True)
    if options.fixture:
        write_fixture(Path(options.fixture), rows_of)
    if options.ill_fixture:
        write_fixture(Path(options.ill_fixture), ill_rows)
    frame.finish("alarms", {"healthy": healthy, "built": built, "ill": ill}, options)


def _run(folder: Path, name: str, own: dict[str, Any]) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """Run a configuration with changes. Returns its rows and the configuration."""
    changes = {"verify.workers": 1, "log.rollouts": '"none"', "output": f'"{folder}"', **own}
    config = load(recipe_paths()[name], [f"{key}={value}" for key, value in changes.items()])
    if not _is_whole(folder, config.steps):
        fit(resolve_members(config, base=FOLDER))
    return read_metrics(folder), dump(config)


def _on_the_grid(folder: Path) -> Path:
    """A model folder of the bundled policy, rounded to bfloat16, as published checkpoints are."""
    if not folder.is_dir():
        loaded = load_model("bundled", dtype="bfloat16")
        loaded.model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
    return folder.resolve()


def _built(folder: Path, changes: dict[str, Any]) -> dict[str, Any]:
    config = {**SMALL, **changes, "output": str(folder)}
    if not _is_whole(folder, config["steps"]):
        winnow.train(**config, progress=False)
    return _judged(read_metrics(folder), dump(validate(config)))


def _is_whole(folder: Path, steps: int) -> bool:
    return (folder / "checkpoints" / f"step-{steps:06d}").is_dir()


def _judged(rows: list[dict[str, float]], config: dict[str, Any]) -> dict[str, Any]:
    """The alarms, and how close the run came to the limits of rules with a single number."""
    started = time.perf_counter()
    alarms = alarms_of_run(rows, config)
    seconds = time.perf_counter() - started
    steps = [row for row in rows if "budget/rollouts" in row]
    norms = [row["policy/grad_norm"] for row in steps if not math.isnan(row.get("policy/grad_norm", math.nan))]
    times_median = [norm / statistics.median(norms[max(0, at - 20) : at]) for at, norm in enumerate(norms) if at >= 10]
    held_out = [row["eval/accuracy_sampled"] for row in rows if "eval/accuracy_sampled" in row]
    return {
        "steps": len(steps),
        "held_out": [round(held_out[0], 3), round(held_out[-1], 3)],
        "alarms": {alarm.name: [a.step for a in alarms if a.name == alarm.name] for alarm in alarms},
        "most_flat": round(max(row["group/flat"] / max(row["group/count"], 1) for row in steps), 3),
        "least_entropy": round(min(row["policy/entropy"] for row in steps), 4),
        "most_clipped": round(max(row.get("policy/clip_fraction", 0.0) for row in steps), 4),
        "ratio_off_by": round(max(abs(row.get("policy/ratio_mean", 1.0) - 1) for row in steps), 5),
        "norm_over_median": round(max(times_median, default=0.0), 2),
        "microseconds_a_step": round(seconds / len(steps) * 1e6),
    }


def write_fixture(path: Path, rows_of: dict[str, list[dict[str, float]]]) -> None:
    """{run: {metric: a number per row, null where there is none}}, compressed, the same bytes for the same numbers.

    Runs of the file that were not repeated are kept.
    """
    before = json.loads(gzip.decompress(path.read_bytes())) if path.exists() else {}
    kept = before | {name: _columns(rows) for name, rows in rows_of.items()}
    text = json.dumps(dict(sorted(kept.items())), separators=(",", ":"), allow_nan=False)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def _columns(rows: list[dict[str, float]]) -> dict[str, list[float | None]]:
    names = sorted({name for row in rows for name in row if any(name.startswith(read) for read in READ)})
    return {name: [_rounded(row.get(name)) for row in rows] for name in names}


def _rounded(number: float | None) -> float | None:
    if number is None or math.isnan(number):
        return None
    return int(number) if number == int(number) else float(f"{number:.6g}")


if __name__ == "__main__":
    main()
