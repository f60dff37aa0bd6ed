"""The mismatch of engine and policy on 32 named rollouts, with `rollout.ahead = 1`.

A step's rollouts are then older than its policy, so their log-probs differ by staleness and mismatch together. At a
boundary where nothing is under way, engine and policy have the same version. The engine then samples 4 rollouts of each
of the task's first 8 prompts, always with the same random numbers, and the policy computes their log-probs.
"""

from __future__ import annotations

import numpy as np

from winnow.core.collect import Request, collect
from winnow.core.metrics import completion_tokens, prompt_tokens
from winnow.core.mismatch import Mismatch, Parity
from winnow.core.run import Run
from winnow.records import FloatArray, Group, Metrics, TrainingSequence

PROMPTS, ROLLOUTS = 8, 32


def measure_mismatch(run: Run, version: int) -> Metrics:
    """Parity, mismatch and lag of engine and policy, both with the weights of `version`. No rollout is trained on.

    Raises EngineError if the engine has another version.
    """
    prompts = run.prompts.prompts[:PROMPTS]
    counts = [ROLLOUTS // len(prompts)] * len(prompts)
    request = Request(prompts, counts, run.sampling, seed=(run.seed, "mismatch"), version=version)
    groups = collect(run.engine, run.verifiers, request)
    sequences = [
        TrainingSequence(prompt=group.prompt, rollout=rollout, group=place, advantage=float(advantage), weight=1.0)
        for place, group in enumerate(groups)
        for rollout, advantage in zip(group.rollouts, centred(group), strict=True)
    ]
    of_policy = run.learner.logprobs(sequences)
    parity = Parity(run.engine.logprob_tolerance, run.config.rollout.max_ratio_outside)
    mismatch = Mismatch()
    for sequence in sequences:
        rollout = sequence.rollout
        difference = (of_policy[sequence.key] - rollout.logprobs)[rollout.sampled]
        each = len(difference)
        parity.add(difference, np.full(each, rollout.rank))
        mismatch.add(np.zeros(each, dtype=np.int64), difference, np.full(each, sequence.advantage))
    completions, prompts_read = completion_tokens(groups), prompt_tokens(groups)
    tokens = {"budget/mismatch_tokens": completions, "budget/mismatch_prompt_tokens": prompts_read}
    return {**parity.metrics(), **mismatch.metrics(), **tokens}


def centred(group: Group) -> FloatArray:
    """[N] each reward minus the mean of the verified ones; 0 where the verifier failed."""
    if not group.valid.any():
        return np.zeros(len(group.rollouts))
    return np.where(group.valid, group.rewards - group.rewards[group.valid].mean(), 0.0)
