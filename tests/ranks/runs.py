"""Small runs to compare: their configurations, and what of a run folder does not depend on the clock."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from distances import relative
from safetensors.torch import load_file

from logged_groups import read_rollouts
from winnow.state.logbook import read_metrics

PARITY = '''
import numpy as np

def parity(prompt, rollout):
    """1 for about half of a random policy's rollouts."""
    return float(sum(map(ord, rollout.text)) % 2)

def rarely(prompt, rollout):
    """1 for so few of them that a step asks for more prompts."""
    return float(sum(map(ord, rollout.text)) % 7 == 0)

def uneven(stats, budget):
    """GVM's counts of six prompts: 48 in all."""
    assert budget == 48
    return np.array([23, 12, 6, 5, 2, 0])
'''
OF_THE_CLOCK = ("seconds/", "eval/seconds", "time/", "memory/", "ranks/")


def small(folder: Path, policy: Path, /, **changes: Any) -> dict[str, Any]:
    """A run in float64 of six prompts a step; a change of a section replaces single keys of it."""
    (folder / "laws.py").write_text(PARITY)
    base: dict[str, Any] = {
        "steps": 4,
        "output": str(folder / "run"),
        "threads": 1,
        "device": "cpu",
        "model": {"path": str(policy), "dtype": "float64"},
        "task": {"use": "arithmetic", "levels": [1, 2], "size": 24},
        "prompt": {"template": "question_only"},  # a chat template is rendered by forks of each process
        "reward": {"use": f"{folder}/laws.py:parity"},
        "rollout": {"prompts_per_step": 6, "rollouts_per_prompt": 8, "max_new_tokens": 4},
        "select": {"use": "max_variance", "keep_per_prompt": 3},
        "evaluate": {"problems": 3, "rollouts_per_prompt": 2, "greedy": False},
        "update": {"tokens_per_micro_batch": 256},
        "optimizer": {"learning_rate": 1e-3, "eps": 1e-3},  # rounding of a gradient near 0 stays small
        "checkpoint": {"every": 0},
        "verify": {"workers": 0},
    }
    for key, value in changes.items():
        base[key] = {**base[key], **value} if isinstance(value, Mapping) and isinstance(base.get(key), dict) else value
    return base


def laws_of(path: Path) -> dict[str, Any]:
    """The parts of a published configuration that a gradient depends on, as changes of `small`.

    These are loss, terms, advantage, weighting, selection, allocation, value model, updates and adapter. Counts are
    reduced. The clock, the engine and 4 and 8 bits are left out, as they do not apply to a CPU.
    """
    published = tomllib.loads(path.read_text(encoding="utf-8"))
    named = {
        name: published[name]
        for name in ("advantage", "weighting", "loss", "terms", "allocate", "critic")
        if name in published
    }
    model, update = published["model"], published.get("update", {})
    lora = {"lora": {**model["lora"], "rank": 4}} if "lora" in model else {}
    probed = {"every": 2, "rollouts_per_prompt": 4} if published.get("allocate", {}).get("use") == "gvm" else {}
    keeps = {"keep_per_prompt": 2} if "keep_per_prompt" in published["select"] else {}
    optimizer = {
        k: v for k, v in published.get("optimizer", {}).items() if k in ("betas", "weight_decay", "max_grad_norm")
    }
    return {
        **{name: _chunked(law) for name, law in named.items()},
        "steps": 1,
        "model": {"gradient_checkpointing": model.get("gradient_checkpointing", "none"), **lora},
        "select": [_chunked(published["select"] | keeps)],
        "probe": {**published.get("probe", {}), **probed},
        "rollout": {"prompts_per_step": min(4, published["rollout"]["prompts_per_step"])},
        "update": {"updates_per_step": min(2, update.get("updates_per_step", 1)), "epochs": update.get("epochs", 1)},
        "optimizer": optimizer,
        "evaluate": {"problems": 1, "rollouts_per_prompt": 1, "greedy": False},
    }


def _chunked(law: Any) -> Any:
    return {**law, "chunk": 4} if isinstance(law, Mapping) and "chunk" in law else law


@dataclass(frozen=True)
class Found:
    """What is left behind by a run, wherever it was computed."""

    metrics: list[dict[str, float]]
    tokens: list[tuple[Any, ...]]  # step, prompt, index and tokens of every rollout
    weights: dict[str, np.ndarray]

    @classmethod
    def of(cls, folder: Path, model: Path) -> Found:
        metrics = [
            {name: number for name, number in row.items() if not name.startswith(OF_THE_CLOCK)}
            for row in read_metrics(folder)
        ]
        rollouts = [
            (logged.step, logged.group.prompt.id, rollout)
            for logged in read_rollouts(folder)
            for rollout in logged.group.rollouts
        ]
        return cls(
            metrics=metrics,
            tokens=[(step, prompt, r.index, tuple(r.tokens.tolist())) for step, prompt, r in rollouts],
            weights=weights_in(model),
        )


def weights_in(model: Path) -> dict[str, np.ndarray]:
    """In float64, which has each of them as it is."""
    return {
        name: tensor.to(torch.float64).numpy()
        for path in sorted(model.glob("model*.safetensors"))
        for name, tensor in load_file(path).items()
    }


def distances(found: Found, expected: Found) -> dict[str, float]:
    """Tokens must be equal; the largest distance of metrics (relative), and that of the weights."""
    assert found.tokens == expected.tokens
    assert [row.keys() for row in found.metrics] == [row.keys() for row in expected.metrics]
    pairs = zip(found.metrics, expected.metrics, strict=True)
    metrics = [_apart(row[name], number) for row, other in pairs for name, number in other.items()]
    return {"metrics": max(metrics), "weights": relative(found.weights, expected.weights)}


def _apart(a: float, b: float) -> float:
    """Relative; of numbers below 1e-3, which rounding alone may be, in thousands of their distance."""
    if math.isnan(a) or math.isnan(b):
        return 0.0 if math.isnan(a) and math.isnan(b) else math.inf
    return abs(a - b) / max(abs(b), 1e-3)
