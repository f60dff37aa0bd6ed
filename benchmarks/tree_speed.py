"""The speed of two source trees on the same work: same seeds, same rollouts, same updates.

    python benchmarks/tree_speed.py --before ../before --after .

Each round trains the same steps in both trees, one after the other, each in a process; the first two steps are the
warm-up. The result is the median over all rounds and steps of the ratio before / after: above 1, the new tree is
faster. benchmarks/identity.py checks that both compute the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

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
    made.add_argument("--write", action="store_true", help="write the result")
    options = frame.parse(made)
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


def trained(tree: Path, sets: tuple[str, ...], steps: int, threads: int) -> Seconds:
    """Seconds of each phase of each step, without the warm-up."""
    with tempfile.TemporaryDirectory(prefix="winnow-speed-") as folder:
        given = (f"steps={steps}", f"output={folder}/run", f"threads={threads}", "evaluate.problems=8", *sets)
        command = [sys.executable, "-m", "winnow", "train", frame.recipe_of_tree(tree, "arithmetic")]
        environment = {**os.environ, "PYTHONPATH": str(tree.resolve() / "src"), "OMP_NUM_THREADS": str(threads)}
        subprocess.run(
            [*command, *(word for each in given for word in ("--set", each))],
            cwd=tree,
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        rows = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    found = [{phase: row[f"seconds/{phase}"] for phase in PHASES} for row in rows if "seconds/step" in row]
    assert len(found) == steps
    return found[WARM_UP:]


if __name__ == "__main__":
    main()
