"""Where old and reference log-probs come from: a pass over a step's batches, before its first update."""

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

    A batch is passed in the micro-batches of its own update. In 16 bits the log-prob of a token depends on what is
    computed beside it, so the ratio of new to old starts at exactly 1 only where both are computed alike. In an epoch
    a rollout is in one batch and is passed once; batches of several epochs share a pass where they are equal, as under
    one update per step.
    """
    ranks.check_same("choice of rollouts", lambda: _chosen(batches), ranks.SAME_ANSWERS)
    filled = list(batches)
    if "old_logprobs" in needs:
        filled = _filled(policy, filled, "old_logprobs")
    if "ref_logprobs" in needs and reference is not None:
        with reference.active() as module:
            filled = _filled(policy, filled, "ref_logprobs", module)
    return filled


def _chosen(batches: Sequence[Batch]) -> str:
    """Which rollouts are trained in which batch and with which weight; machines may round the last digits otherwise."""
    return str([[(sequence.key, f"{sequence.weight:.6e}") for sequence in batch.sequences] for batch in batches])


def logprobs(
    policy: Policy, batches: Sequence[Sequence[TrainingSequence]], module: PolicyModule | None = None
) -> list[Found]:
    """Of each batch's sequences, under the policy or another module."""
    return per_token(
        policy, batches, lambda mb: policy.forward(mb, module=module).logprobs, module=module, what="logprobs"
    )


def _filled(policy: Policy, batches: Sequence[Batch], name: str, module: PolicyModule | None = None) -> list[Batch]:
    """With log-probs under the policy or another module, each distinct batch passed once."""
    keys = [tuple(sequence.key for sequence in batch.sequences) for batch in batches]
    distinct = {key: batch.sequences for key, batch in zip(keys, batches, strict=True)}
    found = dict(zip(distinct, logprobs(policy, list(distinct.values()), module), strict=True))
    return [
        dataclasses.replace(batch, sequences=tuple(s.fill(**{name: found[key][s.key]}) for s in batch.sequences))
        for key, batch in zip(keys, batches, strict=True)
    ]
