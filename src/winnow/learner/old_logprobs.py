"""Where old and reference log-probs come from: one pass over a step's sequences, before its first update."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from winnow import ranks
from winnow.learner.per_token import Found, per_token
from winnow.learner.policy import Policy
from winnow.learner.policy_module import PolicyModule
from winnow.learner.reference import Reference
from winnow.records import Batch, TrainingSequence


def compute_logprobs(
    policy: Policy, batches: Sequence[Batch], needs: Collection[str], *, reference: Reference | None = None
) -> list[Batch]:
    """The batches with `old_logprobs` and `ref_logprobs` filled, as far as in `needs`. Call it before the first update.

    Each distinct rollout is passed once, by one rank; the batches of later epochs share the answer.
    """
    ranks.check_same("choice of rollouts", lambda: _chosen(batches), ranks.SAME_ANSWERS)
    sequences = [sequence for batch in batches for sequence in batch.sequences]
    filled = list(batches)
    if "old_logprobs" in needs:
        filled = _fill(filled, "old_logprobs", logprobs(policy, sequences))
    if "ref_logprobs" in needs and reference is not None:
        with reference.active() as module:
            filled = _fill(filled, "ref_logprobs", logprobs(policy, sequences, module))
    return filled


def _chosen(batches: Sequence[Batch]) -> str:
    """Which rollouts are trained in which batch and with which weight; machines may round the last digits otherwise."""
    return str([[(sequence.key, f"{sequence.weight:.6e}") for sequence in batch.sequences] for batch in batches])


def logprobs(policy: Policy, sequences: Sequence[TrainingSequence], module: PolicyModule | None = None) -> Found:
    """Of each distinct sequence, under the policy or another module."""
    return per_token(
        policy, sequences, lambda mb: policy.forward(mb, module=module).logprobs, module=module, what="logprobs"
    )


def _fill(batches: Sequence[Batch], name: str, found: Found) -> list[Batch]:
    return [
        dataclasses.replace(batch, sequences=tuple(s.fill(**{name: found[s.key]}) for s in batch.sequences))
        for batch in batches
    ]
