"""Judge pairs of answer and gold with the `math` grader of a source tree, in a process of its own, and time each.

    python benchmarks/math_judge.py < pairs.json

The pairs are [answer, gold] in one list. The output is a list of [verdict, processor seconds], after the grader is
warm. A tree is measured with PYTHONPATH, so that two trees are compared by the same code.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import frame
from math_pairs import Pair

HERE = Path(__file__).parents[1]


def judged(tree: Path, pairs: Sequence[Pair]) -> list[tuple[bool, float]]:
    """The verdict of each pair and its processor seconds, by the grader of a tree."""
    env = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    texts = json.dumps([[pair.answer, pair.gold] for pair in pairs])
    done = subprocess.run([sys.executable, __file__], input=texts, capture_output=True, text=True, env=env, check=True)
    return [(verdict, seconds) for verdict, seconds in json.loads(done.stdout)]


def verdicts(tree: Path, pairs: Sequence[Pair]) -> list[bool]:
    """The verdict of each pair, by the grader of a tree."""
    return [verdict for verdict, _ in judged(tree, pairs)]


def paired_seconds(before: Path, pairs: Sequence[Pair], rounds: int) -> dict[str, Any]:
    """Median milliseconds per verdict of a former tree and this one, and the median of their ratios pair by pair.

    The trees take turns. A verdict's time is the shortest of the rounds, because other processes only add to it.
    """
    trees = {"before": before, "after": HERE}
    times: dict[str, list[list[float]]] = {name: [] for name in trees}
    for _ in range(rounds):
        for name, tree in trees.items():
            times[name].append([seconds for _, seconds in judged(tree, pairs)])
    best = {name: [min(turns) for turns in zip(*found, strict=True)] for name, found in times.items()}
    places = {source: [i for i, pair in enumerate(pairs) if pair.source == source] for source in _sources(pairs)}
    return {"all": _compared(best, range(len(pairs)))} | {name: _compared(best, some) for name, some in places.items()}


def _sources(pairs: Sequence[Pair]) -> list[str]:
    return sorted({pair.source for pair in pairs})


def _compared(best: Mapping[str, Sequence[float]], places: Sequence[int]) -> dict[str, Any]:
    before, after = ([best[name][i] for i in places] for name in ("before", "after"))
    return {
        "pairs": len(before),
        "before_ms": frame.median([1000 * seconds for seconds in before], 4),
        "after_ms": frame.median([1000 * seconds for seconds in after], 4),
        "median_of_ratios": frame.median_ratio(after, before),
        "ratio_of_sums": round(sum(after) / sum(before), 3),
    }


def main() -> None:
    from winnow.rewards.math_equivalence import algebra, grader

    algebra.warm()
    found: list[tuple[bool, float]] = []
    for answer, gold in json.load(sys.stdin):
        start = time.process_time()
        verdict = grader.equal(answer, gold)
        found.append((verdict, time.process_time() - start))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
