#!/usr/bin/env python
"""Choose the problems of docs/results.md: a third never solved at first, a third always, a third sometimes.

    python scripts/make_policy.py --lessons mixture --out configs/policies/mixture_qwen2
    winnow eval configs/policies/mixture_qwen2 --config configs/claims/harder.toml --samples 32 --no-greedy \
        --set 'task.levels=[2, 3, 4, 5, 6]' --set task.train_size=250 --split train --output evals/mixture_train
    winnow eval configs/policies/mixture_qwen2 --config configs/claims/harder.toml --samples 32 --no-greedy \
        --set 'task.levels=[2, 3, 4, 5, 6]' --set task.size=600 --split test --output evals/mixture_test
    python scripts/make_mixture.py evals/mixture_train evals/mixture_test

Problems are sorted by their correct answers among 32: none, all, or 4 to 28. Of each kind the first 16 are for training
and the first 36 for evaluation. The policy was never trained on sums of three-digit numbers (level 6), and its
demonstrations of level 2 had no mistakes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PROBLEMS = ROOT / "configs/claims/mixture"
SAMPLES = 32
KINDS: dict[str, Callable[[int], bool]] = {
    "never": lambda correct: correct == 0,
    "always": lambda correct: correct == SAMPLES,
    "sometimes": lambda correct: SAMPLES // 8 <= correct <= SAMPLES - SAMPLES // 8,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    arguments = parser.parse_args()
    for split, folder, each in ("train", arguments.train, 16), ("test", arguments.test, 36):
        lines = [json.dumps(problem) for kind in KINDS for problem in problems_of(folder, kind, each)]
        PROBLEMS.mkdir(parents=True, exist_ok=True)
        (PROBLEMS / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def problems_of(folder: Path, kind: str, count: int) -> list[dict[str, Any]]:
    """The first `count` problems of a kind in an evaluation. Exits where there are fewer."""
    found = [problem for problem, correct in solved(folder / "arithmetic.jsonl") if KINDS[kind](correct)]
    if len(found) < count:
        raise SystemExit(f"{folder}: {len(found)} problems are solved {kind}, and {count} are needed")
    return [{**problem, "kind": kind} for problem in found[:count]]


def solved(rows: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Each problem of an evaluation, and its number of correct answers."""
    correct: dict[str, int] = {}
    problems: dict[str, dict[str, Any]] = {}
    for line in rows.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        name, meta = row["prompt_id"], row["meta"]
        correct[name] = correct.get(name, 0) + bool(row["correct"])
        question = f"What is {meta['expression']}?"
        problems[name] = {"id": name, "question": question, "answer": row["answer"], "level": meta["level"]}
    yield from ((problems[name], count) for name, count in correct.items())


if __name__ == "__main__":
    main()
