"""Old and reference log-probs: a pass over a step's batches before the step's first update."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from winnow import ranks
from winnow.learner.per_token import PerSequence, per_token
from winnow.learner.policy import Policy
from winnow.learner.policy_module import PolicyModule
from winnow.learner.reference import Reference
from winnow.records import Batch, TrainingSequence


def compute_logprobs(
    policy: Policy, batches: Sequence[Batch], needs: Collection[str], *, reference: Reference | None = None
) -> list[Batch]:
    """The batches with `old_logprobs` and `ref_logprobs` filled, as far as in `needs`. Call it before the first update.

    A batch is passed in the micro-batches of its update: in 16 bits a token's log-prob depends on the tokens computed
    with it. The ratio of new to old starts at exactly 1 only where both passes compute alike. Each batch of an epoch is
    passed once. Equal batches of several epochs share a pass, as with one update per step.
    """
    ranks.check_same("choice of rollouts", lambda: _describe_batches(batches), ranks.SAME_RESULTS)
    filled = list(batches)
    if "old_logprobs" in needs:
        filled = _fill(policy, filled, "old_logprobs")
    if "ref_logprobs" in needs and reference is not None:
        with reference.active() as module:
            filled = _fill(policy, filled, "ref_logprobs", module)
    return filled


def _describe_batches(batches: Sequence[Batch]) -> str:
    """Keys and weights of each batch's rollouts, to compare ranks. Weights have 7 digits: machines may round the last
    ones differently.
    """
    return str([[(sequence.key, f"{sequence.weight:.6e}") for sequence in batch.sequences] for batch in batches])


def logprobs(
    policy: Policy, batches: Sequence[Sequence[TrainingSequence]], module: PolicyModule | None = None
) -> list[PerSequence]:
    """Log-probs of each batch's sequences, under the policy or another module."""
    return per_token(
        policy, batches, lambda mb: policy.forward(mb, module=module).logprobs, module=module, what="logprobs"
    )


def _fill(policy: Policy, batches: Sequence[Batch], name: str, module: PolicyModule | None = None) -> list[Batch]:
    """Batches with log-probs under the policy or another module. Each distinct batch is passed once."""
    keys = [tuple(sequence.key for sequence in batch.sequences) for batch in batches]
    distinct = {key: batch.sequences for key, batch in zip(keys, batches, strict=True)}
    logprobs_of = dict(zip(distinct, logprobs(policy, list(distinct.values()), module), strict=True))
    return [
        dataclasses.replace(batch, sequences=tuple(s.fill(**{name: logprobs_of[key][s.key]}) for s in batch.sequences))
        for key, batch in zip(keys, batches, strict=True)
    ]
