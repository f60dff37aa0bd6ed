"""Seconds for the gradient norms that GVM allocates by, beside a plain forward and the sampling of the same rollouts.

    python benchmarks/gradient_norms.py

Every round samples rollouts of the bundled policy with the native engine and then, in the same process, takes a plain
forward over them, both kinds of norms, and the norm of the embedding as it would be without batching: one backward per
rollout, all weight gradients included. The norms are of all rollouts, as if all were correct. What counts is the median
of the per-round ratios. Writes benchmarks/results/<date>_gradient_norms.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import dated
import numpy as np
import torch
from bundled import bundled

from winnow.engines.base import Engine
from winnow.engines.native.engine import native
from winnow.learner.policy import Policy
from winnow.records import Batch, FloatArray, Group, Prompt, Sampling, TrainingSequence

Round = dict[str, float]
PARTS = ("generate", "forward", "embedding", "output_head", "one_by_one")


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    engine, policy, prompts = _setting(options)
    _round(engine, policy, prompts, options, seed=0)  # warm up
    rounds = [_round(engine, policy, prompts, options, seed) for seed in range(1, options.rounds + 1)]
    _write(options, rounds)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for key, value in {"prompts": 32, "rollouts": 8, "max-new-tokens": 64, "threads": 1, "rounds": 5}.items():
        parser.add_argument(f"--{key}", type=int, default=value)
    return parser.parse_args()


def _setting(options: argparse.Namespace) -> tuple[Engine, Policy, list[Prompt]]:
    context, prompts = bundled(options.prompts, at_once=options.prompts * options.rollouts)
    pad = context.tokenizer.pad_token_id
    # as many tokens as the norms cut by themselves, so that the forward sees the same micro-batches
    policy = Policy(context.model, temperature=1.0, pad_token=pad, tokens_per_micro_batch=4096)
    return native(context), policy, prompts


def _round(engine: Engine, policy: Policy, prompts: list[Prompt], options: argparse.Namespace, seed: int) -> Round:
    sampling = Sampling(max_new_tokens=options.max_new_tokens)
    counts = [options.rollouts] * len(prompts)
    groups, generate = _timed(lambda: engine.generate(prompts, counts, sampling, seed=(seed,)))
    rows = _rows(groups)
    _, forward = _timed(lambda: _forward(policy, rows))
    batched, embedding = _timed(lambda: policy.gradient_norms(rows, of="embedding"))
    _, output_head = _timed(lambda: policy.gradient_norms(rows, of="output_head"))
    alone, one_by_one = _timed(lambda: _one_by_one(policy, rows))
    np.testing.assert_allclose(batched, alone, rtol=1e-3)  # a fast wrong answer would be no result
    tokens = float(sum(len(row.rollout.tokens) for row in rows))
    return dict(zip(PARTS, (generate, forward, embedding, output_head, one_by_one), strict=True)) | {"tokens": tokens}


def _rows(groups: Sequence[Group]) -> list[TrainingSequence]:
    return [
        TrainingSequence(prompt=group.prompt, rollout=rollout, group=place, advantage=0.0, weight=0.0)
        for place, group in enumerate(groups)
        for rollout in group.rollouts
    ]


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    answer = work()
    return answer, time.perf_counter() - start


def _batch(rows: Sequence[TrainingSequence]) -> Batch:
    return Batch(epoch=0, sequences=tuple(rows))


@torch.no_grad()
def _forward(policy: Policy, rows: Sequence[TrainingSequence]) -> None:
    for mb in policy.micro_batches(_batch(rows)):
        policy.forward(mb)


def _one_by_one(policy: Policy, rows: Sequence[TrainingSequence]) -> FloatArray:
    weight = policy.model.get_input_embeddings().weight  # type: ignore[operator]
    norms = []
    for row in rows:
        (mb,) = policy.micro_batches(_batch([row]))
        policy.model.zero_grad()
        policy.backward(policy.forward(mb).logprobs.sum())
        norms.append(weight.grad.norm().item())
    policy.model.zero_grad()
    return np.array(norms)


def _write(options: argparse.Namespace, rounds: list[Round]) -> None:
    report = {
        "model": "bundled",
        "settings": vars(options),
        "seeds": list(range(1, len(rounds) + 1)),
        "completion_tokens": [int(r["tokens"]) for r in rounds],
        "seconds": {k: [round(r[k], 4) for r in rounds] for k in PARTS},
        "median": {k: round(statistics.median(r[k] for r in rounds), 4) for k in PARTS},
        "embedding_over": _ratios("embedding", rounds),
        "output_head_over": _ratios("output_head", rounds),
    }
    print(json.dumps({k: report[k] for k in ("median", "embedding_over", "output_head_over")}, indent=2))
    print(f"written: {dated.write('gradient_norms', report, packages=('winnow-rl', 'torch', 'transformers'))}")


def _ratios(part: str, rounds: list[Round]) -> dict[str, float]:
    return {k: round(statistics.median(r[part] / r[k] for r in rounds), 3) for k in PARTS if k != part}


if __name__ == "__main__":
    main()
