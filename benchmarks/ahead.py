#!/usr/bin/env python
"""What does `rollout.ahead = 1` do to the speed of a step and to learning, on two CPU cores?

    python benchmarks/ahead.py speed               about 8 minutes on an idle machine
    python benchmarks/ahead.py learning --nice 15  about 30 minutes of one core

speed       The phases of a step alone, from synchronous runs of the recipe arithmetic with native in a process of its
            own: G seconds of sampling and judging, U seconds of the update, and the rest, with 2 threads (G2, U2) and
            with 1 (G1, U1). Sampling and updates of such a run never coincide. Then the same run one step ahead, with 1
            thread for each side. Expected is (G2 + U2 + rest) / (max(G1, U1) + rest) times the speed of the synchronous
            run on two threads. The three runs are repeated, as the machine's speed changes within minutes. Seconds are
            medians over a run's steps without the first two; ratios are medians over the rounds.
learning    Accuracy by step of the recipe arithmetic with 4 updates per step, synchronous and one step ahead, with and
            without corrections. Means and standard errors over seeds.

Each run is a process. Writes benchmarks/results/<date>_ahead_<part>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import frame

from winnow.state.logbook import read_metrics

SPEED_SIZES = {"rollout.prompts_per_step": 32, "rollout.rollouts_per_prompt": 16}
# By name: correction, and steps ahead
ARMS: dict[str, tuple[str, int]] = {
    "synchronous, none": ("none", 0),
    "ahead, none": ("none", 1),
    "ahead, token_truncate": ("token_truncate", 1),
    "ahead, sequence_mask": ("sequence_mask", 1),
    "ahead, old = engine": ("engine", 1),
}
STEP = "budget/rollouts"


def main() -> None:
    made = frame.parser(__doc__, seeds=5, rounds=5, steps=(0, "of a run; 0: 14 for speed, 40 for learning"), nice=0)
    made.add_argument("part", choices=("speed", "learning"))
    made.add_argument("--select", default="all", help="selector of the speed runs, such as all (a larger update)")
    options = frame.parse(made)
    os.nice(options.nice)
    with tempfile.TemporaryDirectory(prefix="winnow-ahead-") as folder:
        report = (speeds if options.part == "speed" else learning)(Path(folder), options)
    print(json.dumps(report, indent=1))
    frame.finish(f"ahead_{options.part}", report, options)


def speeds(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Every round, and the medians of what `speed` compares."""
    rounds = []
    for number in range(options.rounds):
        rounds.append(speed(folder / str(number), options))
        print(json.dumps(rounds[-1]), flush=True)
    compared = [name for name, value in rounds[0].items() if isinstance(value, float)]
    return {**{name: frame.median([one[name] for one in rounds], 3) for name in compared}, "rounds": rounds}


def speed(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Phases alone, the run one step ahead, and their comparison."""
    own = {
        **SPEED_SIZES,
        "correction": '"none"',
        "steps": options.steps or 14,
        "select": json.dumps(options.select),
        "evaluate.problems": 2,
    }
    two, one = (phases(run(folder / f"alone-{count}", {**own, **engine(count)}, threads=count)) for count in (2, 1))
    rows = run(folder / "ahead", {**own, **engine(1), "rollout.ahead": 1}, threads=1)
    beside = phases(rows)
    step = beside["step"]
    expected = two["step"] / (max(one["sampling"], one["update"]) + two["rest"])
    return {
        "alone, 2 threads": two,
        "alone, 1 thread": one,
        "ahead": beside,
        "expected_speedup": round(expected, 3),
        "speedup_over_2_threads": round(two["step"] / step, 3),
        "speedup_over_1_thread": round(one["step"] / step, 3),
        "share_of_expected": round(two["step"] / step / expected, 3),
        "policy_waits_seconds": middle(rows, "seconds/wait"),
        "engine_waits_seconds": round(step - middle(rows, "ahead/seconds_sampling"), 4),
    }


def learning(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Accuracy of every step, by arm."""
    steps, found = options.steps or 40, dict[str, Any]()
    for name, (correction, ahead) in ARMS.items():
        accuracies, held_out, samples = list[list[float]](), list[float](), list[float]()
        for seed in range(options.seeds):
            changes = {
                "steps": steps,
                "seed": seed,
                "update.updates_per_step": 4,
                "rollout.prompts_per_step": 16,
                "optimizer.learning_rate": 3e-4,
                "evaluate.every": 0,
                "evaluate.problems": 256,
                "rollout.ahead": ahead,
                "correction": '{old = "engine"}' if correction == "engine" else json.dumps(correction),
                **engine(1),
            }
            rows = run(folder / f"{name}-{seed}", changes, threads=1)
            taken = [row for row in rows if STEP in row]
            accuracies.append([row["reward/accuracy"] for row in taken])
            held_out.append(rows[-1]["eval/accuracy_sampled"])
            samples += [row["policy/staleness_sample_size"] for row in taken if "policy/staleness_sample_size" in row]
            print(name, seed, round(held_out[-1], 3), flush=True)
        by_step = [round(statistics.mean(of_step), 4) for of_step in zip(*accuracies, strict=True)]
        found[name] = {
            "accuracy_by_step": by_step,
            "held_out": [round(of_seed, 4) for of_seed in held_out],
            "held_out_mean": round(statistics.mean(held_out), 4),
            "held_out_standard_error": error(held_out),
            "last_quarter_mean": round(statistics.mean(by_step[-max(1, steps // 4) :]), 4),
            "staleness_sample_size": [round(statistics.mean(samples), 3), round(min(samples), 3)] if samples else None,
        }
    return found


def engine(threads: int) -> dict[str, Any]:
    """Changes: native in a process of its own with so many threads."""
    return {"rollout.engine": f'{{use = "native", process = "own", threads = {threads}}}'}


def run(folder: Path, changes: dict[str, Any], *, threads: int) -> list[dict[str, float]]:
    """The rows of a run of the recipe arithmetic, in a process of its own."""
    own = {"threads": threads, "device": '"cpu"', "log.rollouts": '"none"', "verify.workers": 0, **changes}
    sets = [f"--set={key}={value}" for key, value in own.items()]
    command = [sys.executable, "-m", "winnow", "train", "arithmetic", "--output", str(folder), *sets]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return read_metrics(folder)


def phases(rows: list[dict[str, float]]) -> dict[str, float]:
    """Median seconds of a step and of its parts. `rest` is what is neither sampling nor the update."""
    sampling = middle(rows, "seconds/generate") + middle(rows, "seconds/verify")
    update = middle(rows, "seconds/update") + middle(rows, "seconds/logprobs")
    step = middle(rows, "seconds/step")
    waits = middle(rows, "seconds/wait")
    parts = {"sampling": sampling or middle(rows, "ahead/seconds_sampling"), "update": update, "step": step}
    rest = step - sampling - update - waits
    return {**{name: round(value, 4) for name, value in parts.items()}, "rest": round(rest, 4)}


def middle(rows: list[dict[str, float]], name: str) -> float:
    """The median over all steps but the first two and the last; 0 where no row has the metric."""
    values = [row[name] for row in rows if STEP in row and name in row and row["step"] > 1][:-1]
    return round(statistics.median(values), 4) if values else 0.0


def error(values: list[float]) -> float | None:
    return round(statistics.stdev(values) / len(values) ** 0.5, 4) if len(values) > 1 else None


if __name__ == "__main__":
    main()
