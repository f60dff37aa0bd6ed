"""Differences between the log-probs of `native` and of the policy, by precision and number of tokens.

    python benchmarks/parity.py
    python benchmarks/parity.py --model published --prompts 16 --rollouts 1 8      ten minutes on two idle cores

Samples the bundled policy, or the published model, on the default task and compares the log-probs of the same tokens
under the same weights, as every training step does. It uses a correct engine for steps of several sizes. For the
smallest it also uses an engine that samples at temperature 0.9 while the policy is trained at 1. For each precision it
also samples the same rollouts under two batch limits, and counts those that differ.

Writes benchmarks/results/<date>_parity[_published].json.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import frame
import numpy as np
from engines import bundled

from winnow.core.mismatch import Parity
from winnow.core.tally import Metrics
from winnow.engines.base import EngineContext
from winnow.engines.native.engine import native
from winnow.learner.learner import compute_logprobs
from winnow.learner.policy import Policy
from winnow.records import Batch, Prompt, Rollout, Sampling, TrainingSequence

Precision = Literal["policy", "bfloat16", "float16"]
PRECISIONS: tuple[tuple[str, Precision], ...] = (
    ("float32", "policy"),
    ("float32", "float16"),
    ("float32", "bfloat16"),
    ("bfloat16", "policy"),
)
FEW, MANY = 7, 512  # rollouts at once


def main() -> None:
    parser = frame.parser(__doc__, prompts=128, threads=1, tokens=(64, "of a rollout at most"))
    parser.add_argument("--rollouts", type=int, nargs="+", default=[1, 12, 24])
    parser.add_argument("--model", choices=("bundled", "published"), default="bundled")
    options = frame.parse(parser)
    report: dict[str, Any] = {}
    for policy, engine in PRECISIONS:
        context, prompts = bundled(options.prompts, at_once=MANY, dtype=policy, model=options.model)
        well, cooler = (Sampling(max_new_tokens=options.tokens, temperature=each) for each in (1.0, 0.9))
        half = options.prompts // 2
        found = {
            "well": [compared(context, prompts, n, engine, well) for n in options.rollouts],
            "sampled at temperature 0.9": compared(context, prompts, options.rollouts[0], engine, cooler),
            f"under limits of {FEW} and {MANY}": between_limits(policy, engine, half, options.model, well),
        }
        print(f"policy in {policy}, native with dtype {engine!r}", json.dumps(found, indent=1), flush=True)
        report[f"policy in {policy}, native with dtype {engine!r}"] = found
    frame.finish("parity" + "_published" * (options.model == "published"), report, options)


def compared(
    context: EngineContext, prompts: Sequence[Prompt], rollouts: int, dtype: Precision, sampling: Sampling
) -> Metrics:
    """The metrics of a step that trains on all these rollouts."""
    engine = native(context, dtype=dtype)
    groups = engine.generate(prompts, [rollouts] * len(prompts), sampling, seed=("parity", rollouts))
    pairs = [(place, group.prompt, rollout) for place, group in enumerate(groups) for rollout in group.rollouts]
    rows = tuple(TrainingSequence(prompt=p, rollout=r, group=place, advantage=1.0, weight=1.0) for place, p, r in pairs)
    policy = Policy(
        context.model, temperature=1.0, pad_token=context.tokenizer.pad_token_id, tokens_per_micro_batch=8192
    )
    (batch,) = compute_logprobs(policy, [Batch(epoch=0, sequences=rows)], {"old_logprobs"})
    parity = Parity(engine.logprob_tolerance, 0.02)
    for row in batch.sequences:
        parity.add(np.asarray(row.old_logprobs) - row.rollout.logprobs)
    return {"tokens": float(sum(len(row.rollout.tokens) for row in rows)), **parity.metrics()}


def between_limits(policy: str, dtype: Precision, prompts: int, model: str, sampling: Sampling) -> dict[str, float]:
    """Sample ten rollouts per prompt under two batch limits. Returns how many differ, and by how much the log-probs of
    the tokens before the first difference change.
    """
    few, many = (_sampled(policy, dtype, prompts, at_once, model, sampling) for at_once in (FEW, MANY))
    gaps, others = list[float](), 0
    for one, other in zip(few, many, strict=True):
        alike = 0
        while alike < min(len(one.tokens), len(other.tokens)) and one.tokens[alike] == other.tokens[alike]:
            alike += 1
        others += alike < max(len(one.tokens), len(other.tokens))
        gaps += abs(one.logprobs[:alike] - other.logprobs[:alike]).tolist()
    return {
        "rollouts": float(len(many)),
        "tokens": float(sum(len(rollout.tokens) for rollout in many)),
        "others": float(others),
        "gap_mean": sum(gaps) / len(gaps),
        "gap_max": max(gaps),
    }


def _sampled(policy: str, dtype: Precision, count: int, at_once: int, model: str, sampling: Sampling) -> list[Rollout]:
    context, prompts = bundled(count, at_once=at_once, dtype=policy, model=model)
    groups = native(context, dtype=dtype).generate(prompts, [10] * count, sampling, seed=("limits",))
    return [rollout for group in groups for rollout in group.rollouts]


if __name__ == "__main__":
    main()
