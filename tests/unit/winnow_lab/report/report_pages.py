"""Report pages for a browser: the page's files assembled with any data, and data with every kind of rollout."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from winnow.run_view.panels import STEPS
from winnow_lab.report import html as assembled
from winnow_lab.report.rollouts import packed

LEDGER = (("generated", 1000), ("verified", 1000), ("kept", 250), ("trained", 240), ("wasted", 760))
KINDS = ("correct", "wrong", "unparsable", "failed")


def as_sent(made: dict[str, Any]) -> dict[str, Any]:
    """A group in the page's format."""
    return made | {"rollouts": packed(made["rollouts"])}


def assemble(data: dict[str, Any], *, served: bool = False) -> str:
    """The page of the data, in the form that `winnow report` writes."""
    runs = [one | {"groups": [as_sent(g) for g in one["groups"]]} for one in data["runs"]]
    return assembled.assemble(assembled.encoded(data | {"runs": runs}), title="winnow report", served=served)[0]


def rollout(index: int, completion: str, **other: Any) -> dict[str, Any]:
    """A rollout of one token per word, changed by `other`. Of four the first is trained on, the third only kept."""
    kind, kept = other.get("kind", KINDS[index % 4]), index % 2 == 0
    trained = index % 4 == 0
    pieces = re.findall(r"\s*\S+|\s+$", completion)
    reward = {"correct": 1.0, "failed": None}.get(kind, 0.0)
    return {
        "index": index, "text": None, "length": len(pieces), "finish": "length" if index % 5 == 4 else "stop",
        "kind": kind, "reward": reward, "parts": {"answer": reward or 0.0}, "extracted": "42", "cause": None,
        "detail": "", "seconds": 0.01, "advantage": None if reward is None or not kept else reward - 0.5, "kept": kept,
        "trained": trained, "reason": "trained" if trained else "zero advantage" if kept else "not selected",
        "weight": 0.01, "pieces": pieces, "logprobs": [-0.4 * (i % 7) for i in range(len(pieces))], "advantages": None,
        "values": None, "environment": None,
    } | other  # fmt: skip


def group(step: int, prompt_id: str, rollouts: list[dict[str, Any]], **other: Any) -> dict[str, Any]:
    rewards = [r["reward"] for r in rollouts if r["reward"] is not None]
    return {
        "step": step, "prompt_id": prompt_id, "prompt": f"What is 6 + {prompt_id}?", "answer": "42",
        "task": "sums", "count": len(rollouts), "mean_reward": sum(rewards) / len(rewards) if rewards else None,
        "rollouts": rollouts,
    } | other  # fmt: skip


def groups(steps: int = 3, prompts: int = 3, count: int = 4) -> Iterator[dict[str, Any]]:
    """The prompt `q0` in every step, its neighbours too; every verdict in each group."""
    for step in range(steps):
        for prompt in range(prompts):
            made = [rollout(i, f"step {step} prompt {prompt} sample {i} says forty two") for i in range(count)]
            yield group(step, f"q{prompt}", made)


def run(name: str = "mine", made: list[dict[str, Any]] | None = None, **other: Any) -> dict[str, Any]:
    """One run with something in every section of the page."""
    made = list(groups()) if made is None else made
    steps = sorted({g["step"] for g in made})
    count = sum(len(g["rollouts"]) for g in made)
    per_step = {s: [len(g["rollouts"]) for g in made if g["step"] == s] for s in steps}
    accuracy = {
        "label": "training",
        "quantity": "training",
        "note": "",
        "x": [0, 1, 2],
        "y": [0.2, None, 0.6],
        "style": "solid",
        "color": "blue",
        "axis": 1,
    }
    held_out = {
        "label": "held out", "quantity": "held out", "note": "", "x": [0, 2], "y": [0.1, 0.5], "style": "dashed",
        "color": "orange", "axis": 1,
    }  # fmt: skip
    return {
        "name": name, "subtitle": "GRPO + max_variance 16 -> 4",
        "headline": [{"label": "held-out accuracy", "value": "10% -> 50%", "detail": "after 3 steps"}],
        "config": {"seed": 0, "loss": {"clip": 0.2, "use": "clip"}, "select": [{"use": "max_variance"}]},
        "panels": [{
            "title": "accuracy", "x_label": STEPS, "y_label": "correct", "y2_label": None, "percent": True,
            "percent2": False, "y_range": [0, 1], "y2_range": None,
            "spans": [{"label": "policy held", "from": 0, "to": 1}],
            "series": [accuracy | {"error": None, "band": [[0.1, None, 0.5], [0.3, None, 0.7]],
                                   "band_label": "± 1 s.d."},
                       held_out | {"error": [0.02, 0.03], "band": None}],
        }],
        "ledger": [
            {"label": name_, "tokens": tokens, "rollouts": tokens // 10, "share": tokens / 1000, "note": ""}
            for name_, tokens in LEDGER
        ],
        "allocation": [
            {"step": g["step"], "prompt_id": g["prompt_id"], "pass_rate": 0.25, "count": 4} for g in made[:50]
        ],
        "alarms": [{"step": 2, "name": "entropy_collapse", "text": "entropy fell below 0.1: raise loss.entropy"}],
        "metrics": {"steps": [0, 1, 2], "columns": {
            "reward/mean": {"at": None, "y": [0.2, None, 0.6]}, "loss": {"at": [0, 1], "y": [1.0, 0.5]},
        }},
        "meanings": {"reward/mean": "mean reward of all rollouts", "loss": "what is minimised"},
        "steps": [{"step": s, "groups": len(n), "rollouts": sum(n), "included": sum(n)} for s, n in per_step.items()],
        "rollouts": {"included": count, "of": count, "why": ""}, "groups": made,
    } | other  # fmt: skip


def change(id: str, *, better: bool = True, **texts: str) -> dict[str, Any]:
    """A problem on which two models differ."""
    default = {
        "question": f"what is {id}?",
        "gold": "42",
        "other_answer": f"base on {id}",
        "model_answer": f"own on {id}",
    }
    scores = (0.0, 0.5) if better else (0.5, 0.25)
    return {"better": better, "id": id, "other": scores[0], "model": scores[1], **default} | texts


def evaluated(**other: Any) -> dict[str, Any]:
    """Two models on the same problems: better on two, worse on two, of which one is in the file."""
    shares = {"correct": (69, 205), "right format, wrong answer": (122, 170), "wrong format": (309, 125)}
    comparison = {
        "task": "sums", "mode": "greedy", "problems": 500, "other": 0.138, "model": 0.41, "interval": [0.2, 0.3],
        "p_value": 1e-9, "won": 2, "lost": 2,
        "categories": [
            {"category": "correct", "label": label, "other": base, "model": own, "other_share": base / 500,
             "model_share": own / 500} for label, (base, own) in shares.items()
        ],
        "changes": [change("q1"), change("q2", better=False), change("q3")],
    }  # fmt: skip
    names = {"name": "evals/both", "models": {"other": "bundled", "model": "step-000120"}, "notes": []}
    return {**names, "comparisons": [comparison | other]}


def data(*runs: dict[str, Any], **other: Any) -> dict[str, Any]:
    return {
        "format": 1, "winnow": "0.1.0", "served": False, "limit_bytes": 20_000_000, "runs": list(runs) or [run()]
    } | other  # fmt: skip
