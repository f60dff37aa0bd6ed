"""The speed of two source trees on the same work: same seeds, same rollouts, same updates.

    python benchmarks/tree_speed.py --before ../before --after .
    python benchmarks/tree_speed.py --before ../before --after . --demo --rounds 3     the run of scripts/demo

Each round trains the same steps in both trees, one after the other, each in a process; the first two steps are the
warm-up. The result is the median over all rounds and steps of the ratio before / after: above 1, the new tree is
faster. benchmarks/identity.py checks that both compute the same. With --demo, each round trains the whole run of each
tree's scripts/demo, with the number of processes that the script names; the seconds are those of all steps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import frame

WARM_UP = 2
SETS = {  # overrides of the recipe arithmetic: PODS 16 -> 4, and the whole step at n = m
    "pods": (),
    "step": ("select=all",),
}
PHASES = ("generate", "update", "step")
Seconds = list[dict[str, float]]


def main() -> None:
    made = frame.parser(__doc__, rounds=5, steps=8, threads=2)
    made.add_argument("--before", type=Path, required=True)
    made.add_argument("--after", type=Path, required=True)
    made.add_argument("--demo", action="store_true", help="the whole run of scripts/demo")
    made.add_argument("--write", action="store_true", help="write the result")
    options = frame.parse(made)
    if options.demo:
        report = demo(options.before, options.after, options.rounds)
        print(json.dumps(report, indent=1))
        if options.write:
            frame.finish("tree_speed_demo", {"settings": {"rounds": options.rounds}, **report})
        return
    report = {}
    for point, sets in SETS.items():
        pairs = []
        for _ in range(options.rounds):
            both = [trained(tree, sets, options.steps, options.threads) for tree in (options.before, options.after)]
            pairs += list(zip(*both, strict=True))
        report[point] = {
            phase: {
                "ratio": frame.median_ratio([a[phase] for a, _ in pairs], [b[phase] for _, b in pairs]),
                "before": frame.median([a[phase] for a, _ in pairs]),
                "after": frame.median([b[phase] for _, b in pairs]),
            }
            for phase in PHASES
        }
        print(point, json.dumps(report[point]), flush=True)
    if options.write:
        settings = {"rounds": options.rounds, "steps": options.steps, "threads": options.threads, "sets": SETS}
        frame.finish("tree_speed", {"settings": settings, "before / after, and median seconds": report})


def demo(before: Path, after: Path, rounds: int) -> dict[str, Any]:
    """Seconds of training and the last accuracies of each tree's demo, and the median ratio after / before."""
    pairs = [(demonstrated(before), demonstrated(after)) for _ in range(rounds)]
    seconds = [[run["seconds"] for run in side] for side in zip(*pairs, strict=True)]
    return {
        "seconds after / before": frame.median_ratio(seconds[1], seconds[0]),
        "before": [one for one, _ in pairs],
        "after": [other for _, other in pairs],
    }


def demonstrated(tree: Path) -> dict[str, float]:
    """The run that a tree's scripts/demo trains."""
    ranks = ("--ranks", "auto") if "--ranks auto" in (tree / "scripts" / "demo").read_text() else ()
    rows = metrics_of(tree, ranks)
    last = [row for row in rows if "eval/accuracy_sampled" in row][-1]
    accuracies = {name: last[f"eval/{name}"] for name in ("accuracy_sampled", "accuracy_greedy")}
    return {"seconds": round(sum(row.get("seconds/step", 0.0) for row in rows), 2), **accuracies}


def trained(tree: Path, sets: tuple[str, ...], steps: int, threads: int) -> Seconds:
    """Seconds of each phase of each step, without the warm-up."""
    given = (f"steps={steps}", f"threads={threads}", "evaluate.problems=8", *sets)
    words = [word for each in given for word in ("--set", each)]
    rows = metrics_of(tree, words, {"OMP_NUM_THREADS": str(threads)})
    found = [{phase: row[f"seconds/{phase}"] for phase in PHASES} for row in rows if "seconds/step" in row]
    assert len(found) == steps
    return found[WARM_UP:]


def metrics_of(tree: Path, words: Sequence[str], variables: Mapping[str, str] | None = None) -> Seconds:
    """The metrics of a run of the recipe arithmetic in a tree, with these further words of the command."""
    with tempfile.TemporaryDirectory(prefix="winnow-speed-") as folder:
        command = [sys.executable, "-m", "winnow", "train", frame.recipe_of_tree(tree, "arithmetic")]
        subprocess.run(
            [*command, "--output", f"{folder}/run", *words],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree.resolve() / "src"), **(variables or {})},
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]


if __name__ == "__main__":
    main()
