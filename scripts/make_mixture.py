#!/usr/bin/env python
"""Make the policy and the problems of docs/budget.md: a third never solved at first, a third always, a third sometimes.

    winnow train configs/claims/harder.toml --set seed=100 --set task.seed=100 --set task.train_size=256 \
        --set rollout.prompts_per_step=4 --set evaluate.every=0 --output runs/mixture_policy
    python scripts/make_mixture.py policy runs/mixture_policy/checkpoints/step-000150
    winnow eval configs/policies/mixture_qwen2 --config configs/claims/harder.toml --samples 32 --no-greedy \
        --set 'task.levels=[2, 3, 4, 5, 6]' --set task.train_size=250 --split train --output evals/mixture_train
    winnow eval configs/policies/mixture_qwen2 --config configs/claims/harder.toml --samples 32 --no-greedy \
        --set 'task.levels=[2, 3, 4, 5, 6]' --set task.size=600 --split test --output evals/mixture_test
    python scripts/make_mixture.py problems evals/mixture_train evals/mixture_test

`policy` saves the weights in float16. `problems` sorts the problems by their correct answers among 32: none, all, or
4 to 28. Of each kind it takes the first 16 for training and the first 36 to evaluate on. It also writes the lengths and
verdicts of the training problems' rollouts. The policy was not trained on the problems of `task.seed` 0 unless both
draws have them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
POLICY, PROBLEMS = ROOT / "configs/policies/mixture_qwen2", ROOT / "configs/claims/mixture"
SAMPLES = 32
KINDS: dict[str, Callable[[int], bool]] = {
    "never": lambda correct: correct == 0,
    "always": lambda correct: correct == SAMPLES,
    "sometimes": lambda correct: SAMPLES // 8 <= correct <= SAMPLES - SAMPLES // 8,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("policy").add_argument("checkpoint", type=Path)
    problems = commands.add_parser("problems")
    problems.add_argument("train", type=Path)
    problems.add_argument("test", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "policy":
        save_policy(arguments.checkpoint)
        return
    for split, folder, each in ("train", arguments.train, 16), ("test", arguments.test, 36):
        lines = [json.dumps(problem) for kind in KINDS for problem in problems_of(folder, kind, each)]
        PROBLEMS.mkdir(parents=True, exist_ok=True)
        (PROBLEMS / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_rollouts(arguments.train)


def save_policy(checkpoint: Path) -> None:
    """Save the weights of a checkpoint in float16, with its tokenizer."""
    import torch
    from make_policy import save
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    save(model, AutoTokenizer.from_pretrained(checkpoint), POLICY)


def problems_of(folder: Path, kind: str, count: int) -> list[dict[str, Any]]:
    """The first `count` problems of a kind in an evaluation. Exits where there are fewer."""
    found = [problem for problem, correct in solved(folder / "arithmetic.jsonl") if KINDS[kind](correct)]
    if len(found) < count:
        raise SystemExit(f"{folder}: {len(found)} problems are solved {kind}, and {count} are needed")
    return [{**problem, "kind": kind} for problem in found[:count]]


def write_rollouts(folder: Path) -> None:
    """Write lengths and verdicts of the training problems' rollouts, which benchmarks/budget_signal.py draws from."""
    lines = (PROBLEMS / "train.jsonl").read_text(encoding="utf-8").splitlines()
    problems = {problem["id"]: problem for problem in map(json.loads, lines)}
    rows = [json.loads(line) for line in (folder / "arithmetic.jsonl").read_text(encoding="utf-8").splitlines()]
    records = []
    for name, problem in problems.items():
        own = [row for row in rows if row["prompt_id"] == name]
        numbers = {"lengths": [row["length"] for row in own], "correct": [int(bool(row["correct"])) for row in own]}
        records.append(json.dumps({"id": name, "kind": problem["kind"], "level": problem["level"], **numbers}))
    (PROBLEMS / "rollouts.jsonl").write_text("\n".join(records) + "\n", encoding="utf-8")


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
