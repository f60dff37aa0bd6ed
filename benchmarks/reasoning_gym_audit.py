"""Rewards of every data set of reasoning-gym under winnow's grammar, for golds, junk, code, and constant answers.

    python benchmarks/reasoning_gym_audit.py

All answers are judged by the reward `reasoning_gym` in a killable worker with a limit of 2 s; the constant audit runs
on 20 items of each data set. Writes benchmarks/results/<date>_reasoning_gym_audit.json.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import frame
import numpy as np
from adversarial import PAYLOADS
from reasoning_gym.factory import DATASETS, create_dataset

from winnow.records import Outcome, Prompt, Rollout
from winnow.rewards.gym import audit_constants
from winnow.verify.verifiers import Verifiers

TOWER = "9**9**9**9"


def judge(verifiers: Verifiers, dataset: str, tasks: Sequence[tuple[dict[str, Any], str]]) -> list[Outcome]:
    return list(verifiers.stream(_task(dataset, entry, answer) for entry, answer in tasks))


def _task(dataset: str, entry: dict[str, Any], answer: str) -> tuple[Prompt, Rollout]:
    meta = {"dataset": dataset, "options": {}, "entry": entry}
    prompt = Prompt(id="p", tokens=np.zeros(1, np.int64), text="Q", answer=entry["answer"], task="t", meta=meta)
    text, tokens = f"<answer>{answer}</answer>", np.zeros(1, np.int64)
    return prompt, Rollout(index=0, tokens=tokens, logprobs=np.zeros(1), text=text, finish="stop", version=0)


def examine(verifiers: Verifiers, dataset: str, items: int, folder: Path) -> dict[str, Any]:
    made = create_dataset(dataset, seed=3, size=items)
    entries = [json.loads(json.dumps(made[i])) for i in range(items)]
    golds = [(entry, entry["answer"]) for entry in entries if isinstance(entry["answer"], str)]
    outcomes = judge(verifiers, dataset, golds)
    marks = [folder / f"{dataset}{n}" for n in range(len(PAYLOADS))]
    code = [(entries[0], payload.replace("MARK", str(mark))) for payload, mark in zip(PAYLOADS, marks, strict=True)]
    judge(verifiers, dataset, code)
    (tower,) = judge(verifiers, dataset, [(entries[0], TOWER)])
    audit = audit_constants(dataset, {}, entries)
    return {
        "golds": len(golds),
        "golds_correct": sum(outcome.correct is True for outcome in outcomes),
        "payloads_that_ran": sum(mark.exists() for mark in marks),
        "tower": tower.cause or tower.kind,
        "constant": audit.constant,
        "constant_score": round(audit.score, 3),
        "majority": round(audit.majority, 3),
        "refused": audit.beaten,
    }


def main() -> None:
    parser = frame.parser(__doc__, items=20)
    parser.add_argument("--datasets", nargs="*", default=sorted(set(DATASETS) - {"composite"}))
    options = frame.parse(parser)
    found = {}
    limits = {"timeout_seconds": 2.0, "memory_mb": 2048, "max_failure_share": 1.0}
    with tempfile.TemporaryDirectory() as folder, Verifiers({"use": "reasoning_gym"}, workers=1, **limits) as verifiers:
        for dataset in options.datasets:
            found[dataset] = examine(verifiers, dataset, options.items, Path(folder))
            print(dataset, found[dataset], flush=True)
    report = {
        "items": options.items,
        "data_sets": len(found),
        "payloads_tried_on_each": len(PAYLOADS),
        "payloads_that_ran": sum(row["payloads_that_ran"] for row in found.values()),
        "golds": sum(row["golds"] for row in found.values()),
        "golds_correct": sum(row["golds_correct"] for row in found.values()),
        "towers_that_hung": sum(row["tower"] == "timeout" for row in found.values()),
        "refused": sorted(name for name, row in found.items() if row["refused"]),
        "by_data_set": found,
    }
    print({key: value for key, value in report.items() if key != "by_data_set"})
    frame.finish("reasoning_gym_audit", report, packages=("winnow-rl", "reasoning_gym", "sympy"))


if __name__ == "__main__":
    main()
