"""Where old and reference log-probs come from: one pass over a step's sequences, before its first update."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch

from winnow import ranks
from winnow.learner.policy import Policy
from winnow.learner.policy_module import PolicyModule
from winnow.learner.reference import Reference
from winnow.learner.sharding import reshard
from winnow.records import Batch, FloatArray, TrainingSequence

Found = Mapping[tuple[int, int], FloatArray]  # [L] per sequence, by its key


def compute_logprobs(
    policy: Policy, batches: Sequence[Batch], needs: Collection[str], *, reference: Reference | None = None
) -> list[Batch]:
    """The batches with `old_logprobs` and `ref_logprobs` filled, as far as in `needs`. Call it before the first update.

    Each distinct rollout is passed once, by one rank; the batches of later epochs share the answer.
    """
    ranks.check_same("choice of rollouts", lambda: _chosen(batches), ranks.SAME_ANSWERS)
    sequences = list({sequence.key: sequence for batch in batches for sequence in batch.sequences}.values())
    filled = list(batches)
    if "old_logprobs" in needs:
        filled = _fill(filled, "old_logprobs", _logprobs(policy, sequences, policy.module))
    if "ref_logprobs" in needs and reference is not None:
        with reference.active() as module:
            filled = _fill(filled, "ref_logprobs", _logprobs(policy, sequences, module))
    return filled


def _chosen(batches: Sequence[Batch]) -> str:
    """Which rollouts are trained in which batch and with which weight; machines may round the last digits otherwise."""
    return str([[(sequence.key, f"{sequence.weight:.6e}") for sequence in batch.sequences] for batch in batches])


@torch.no_grad()
def _logprobs(policy: Policy, sequences: Sequence[TrainingSequence], module: PolicyModule) -> Found:
    found = {}
    for mb in policy.micro_batches(sequences):
        lengths = [len(sequence.rollout.tokens) for sequence in mb.sequences]
        pieces = torch.split(policy.forward(mb, module=module).logprobs.cpu(), lengths)
        if mb.mask.any():  # it is not there only to make as many passes as other ranks
            found.update({sequence.key: piece.numpy() for sequence, piece in zip(mb.sequences, pieces, strict=True)})
    reshard(module)
    every = ranks.each(found, what="logprobs")
    return {key: logprobs.astype(np.float64) for of_rank in every for key, logprobs in of_rank.items()}


def _fill(batches: Sequence[Batch], name: str, found: Found) -> list[Batch]:
    return [
        dataclasses.replace(batch, sequences=tuple(s.fill(**{name: found[s.key]}) for s in batch.sequences))
        for batch in batches
    ]
