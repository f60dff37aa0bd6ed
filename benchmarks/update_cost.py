"""The cost of an update on this CPU: seconds and peak memory by the number of kept rollouts, and with each technique
on and off.

    python benchmarks/update_cost.py

The shape has 40M parameters and random weights. m = n, n/2, n/4 and n/8 of every prompt's n rollouts are kept, with
random rewards. An update is that part of a step: micro-batches, loss, gradients, clipping, AdamW. A line is fitted to
the median seconds by kept tokens, without prompts. A hook on the backbone checks that it reads no token of a dropped
rollout. Each technique has a separate process, in which the numbers of kept rollouts alternate. "peak" is the peak
memory (VmHWM, reset before each update) minus the use before it, in MiB, with freed memory returned to the system at
once.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import subprocess
import sys
from typing import Any

import frame
import numpy as np
import torch
from torch import Tensor, nn

from winnow.algos.advantage import grpo
from winnow.algos.loss import clip
from winnow.algos.objective import Objective
from winnow.algos.selectors import max_variance
from winnow.algos.weighting import token
from winnow.core.batches import make_batches
from winnow.learner.optimizer import Optimizer
from winnow.learner.policy import Policy
from winnow.memory.usage import process_memory, reset_peak
from winnow.models.adapter import add_lora
from winnow.records import Batch, Group, Outcome, Prompt, Rollout
from winnow.seeds import Rng

FORTY_MILLION = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_attention_heads": 8,
    "num_hidden_layers": 11,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
    "vocab_size": 16_000,
}
TECHNIQUES: dict[str, dict[str, Any]] = {  # keys that differ from the default
    "default": {},
    "selective checkpointing": {"gradient_checkpointing": "selective"},
    "full checkpointing": {"gradient_checkpointing": "full"},
    "prompts not shared": {"shared": False},
    "chunks of 128 tokens": {"chunk_tokens": 128},
    "micro-batches of 1024 tokens": {"tokens_per_micro_batch": 1024},
    "packed": {"packed": True},
    "packed, full checkpointing": {"packed": True, "gradient_checkpointing": "full"},
    "LoRA": {"lora": True},
}
PARTS = (1, 2, 4, 8)  # divisors of n, for the kept rollouts
MIB = 2**20


def main() -> None:
    made = frame.parser(__doc__, rounds=3, prompts=2, rollouts=16, prompt_tokens=64, tokens=64, threads=1)
    made.add_argument("--technique", choices=TECHNIQUES, help=argparse.SUPPRESS)
    options = frame.parse(made)
    if options.technique:
        print(json.dumps(cost(FORTY_MILLION, TECHNIQUES[options.technique], options)))
        return
    report = {}
    for name in TECHNIQUES:
        command = [sys.executable, __file__, *sys.argv[1:], "--technique", name]
        done = subprocess.run(
            command, check=True, env={**os.environ, **frame.AT_ONCE}, stdout=subprocess.PIPE, text=True
        )
        report[name] = json.loads(done.stdout.splitlines()[-1])
        print(name, json.dumps(report[name]["line"]), [point["peak"] for point in report[name]["kept"]], flush=True)
    del options.technique
    frame.finish("update_cost", {"shape": FORTY_MILLION, "techniques": report}, options)


def cost(shape: dict[str, Any], technique: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Results per number of kept rollouts, and the line through their medians."""
    update = Update(shape, technique)
    groups = make_groups(shape["vocab_size"], options)
    keep = [options.rollouts // part for part in PARTS]
    batches = {m: batch_of(groups, m, shared=technique.get("shared", True)) for m in keep}
    measured: dict[int, list[dict[str, Any]]] = {m: [] for m in keep}
    for number in range(options.rounds + 1):  # the first one is the warm-up
        for m, batch in batches.items():
            found = update(batch)
            measured[m] += [found] if number else []
    kept = [_point(m, batches[m], groups, measured[m]) for m in keep]
    return {"parameters trained": update.trained, "kept": kept, "line": line(kept)}


def _point(m: int, batch: Batch, groups: list[Group], measured: list[dict[str, Any]]) -> dict[str, Any]:
    rollouts = [sequence.rollout for sequence in batch.sequences]
    names = {id(rollout) for rollout in rollouts}
    dropped = [rollout for group in groups for rollout in group.rollouts if id(rollout) not in names]
    read = measured[0]["read"]
    return {
        "m": m,
        "rollouts kept": len(rollouts),
        "rollouts dropped": len(dropped),
        "kept rollouts read": seen(rollouts, read),
        "dropped rollouts read": seen(dropped, read),
        "rows read": sum(len(rows) for rows in read),
        "tokens read": sum(rows.size for rows in read),
        "kept tokens": sum(len(rollout.tokens) for rollout in rollouts),
        "seconds": frame.median([found["seconds"] for found in measured], 4),
        "peak": round(max(found["peak"] for found in measured) / MIB, 1),
    }


def seen(rollouts: list[Rollout], read: list[np.ndarray]) -> int:
    """Number of rollouts that the backbone read. The last token of a rollout is never read."""
    rows = [row.tobytes() for several in read for row in several]
    return sum(any(rollout.tokens[:-1].tobytes() in row for row in rows) for rollout in rollouts)


def line(kept: list[dict[str, Any]]) -> dict[str, float]:
    """The least-squares line of seconds by kept tokens."""
    tokens, seconds = (np.array([point[name] for point in kept], dtype=float) for name in ("kept tokens", "seconds"))
    slope, intercept = np.polyfit(tokens, seconds, 1)
    left = seconds - (slope * tokens + intercept)
    explained = 1 - (left**2).sum() / ((seconds - seconds.mean()) ** 2).sum()
    found = {"milliseconds per kept token": 1000 * slope, "seconds at none": intercept, "R^2": explained}
    return {name: round(float(value), 4) for name, value in found.items()}


class Update:
    """A model with its optimizer, trained by successive updates."""

    def __init__(self, shape: dict[str, Any], technique: dict[str, Any]) -> None:
        options = {k: v for k, v in technique.items() if k not in ("lora", "shared")}
        self.policy = Policy(
            _model(shape, lora=technique.get("lora", False)),
            temperature=1.0,
            pad_token=0,
            **{"tokens_per_micro_batch": 16_384, **options},
        )
        self.optimizer = Optimizer(
            self.policy.parameters,
            learning_rate=1e-6,
            betas=(0.9, 0.95),
            eps=1e-8,
            weight_decay=0.0,
            max_grad_norm=1.0,
            schedule="constant",
            warmup_updates=0,
            total_updates=1,
        )
        self.objective = Objective(clip)
        self.trained = sum(p.numel() for p in self.policy.parameters.values())
        self._read: list[np.ndarray] = []
        self.policy.module.parts.backbone.register_forward_pre_hook(self._count, with_kwargs=True)

    def __call__(self, batch: Batch) -> dict[str, Any]:
        """Do an update. Returns seconds, peak bytes, and the tokens [rows, columns] that each forward pass read."""
        self._read.clear()
        reset_peak()
        before = process_memory()["VmRSS"]
        _, seconds = frame.timed(lambda: self._update(batch))
        return {"seconds": seconds, "peak": process_memory()["VmHWM"] - before, "read": list(self._read)}

    def _update(self, batch: Batch) -> None:
        for mb in self.policy.micro_batches(batch.sequences):
            self.objective(self.policy.forward(mb), mb).total.backward()
        self.optimizer.step()

    def _count(self, module: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Any]) -> None:
        self._read.append(named["input_ids"].numpy(force=True))


def _model(shape: dict[str, Any], *, lora: bool) -> nn.Module:
    from transformers import AutoModelForCausalLM, Qwen2Config

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Qwen2Config(**shape), dtype=torch.float32)
    return add_lora(model, rank=16, alpha=32.0, targets="all-linear", seed=0) if lora else model


def make_groups(vocabulary: int, options: argparse.Namespace) -> list[Group]:
    """Random tokens and rewards."""
    rng, groups = np.random.default_rng(0), []
    for number in range(options.prompts):
        tokens = rng.integers(0, vocabulary, options.prompt_tokens)
        prompt = Prompt(id=f"p{number}", tokens=tokens, text="", answer=None, task="")
        groups.append(_group(prompt, options.rollouts, vocabulary, options.tokens, rng))
    return groups


def _group(prompt: Prompt, rollouts: int, vocabulary: int, tokens: int, rng: np.random.Generator) -> Group:
    made = [
        Rollout(index=i, tokens=rng.integers(0, vocabulary, tokens), logprobs=np.zeros(tokens), text="",
                finish="length", version=0)
        for i in range(rollouts)
    ]  # fmt: skip
    outcomes = [
        Outcome(reward=reward, correct=reward > 0.5, kind="correct" if reward > 0.5 else "wrong")
        for reward in rng.random(rollouts).tolist()
    ]
    return Group(prompt=prompt, rollouts=tuple(made), outcomes=tuple(outcomes))


def batch_of(groups: list[Group], keep: int, *, shared: bool) -> Batch:
    """The update on the kept rollouts, as in a step. Unless `shared`, each rollout has a separate prompt with the same
    tokens, which is then read once per rollout.
    """
    select = functools.partial(max_variance, keep_per_prompt=keep)
    chosen = [group.fill(keep=select(group, Rng(("select",)))) for group in groups]
    credited = [group.fill(advantages=credit) for group, credit in zip(chosen, grpo(chosen), strict=True)]
    (batch,) = make_batches(credited, token, epochs=1, updates_per_step=1, max_new_tokens=groups[0].lengths[0],
                        planned=len(groups), pass_rates=None, drop_silent=False, seed=("update",))  # fmt: skip
    if shared:
        return batch
    apart = (dataclasses.replace(row, prompt=dataclasses.replace(row.prompt)) for row in batch.sequences)
    return dataclasses.replace(batch, sequences=tuple(apart))


if __name__ == "__main__":
    main()
