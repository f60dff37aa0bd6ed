"""The meaning of "mean": one weight per sequence, which multiplies the loss of each of its tokens.

A weighting gets every kept rollout of one step before they are split into updates, micro-batches and ranks. So no loss,
update, micro-batch or rank ever divides by a count. With the lengths L_i, the scalar that is optimised is
sum_i weight_i * sum_t loss_it. A step of k updates optimises k times this scalar in total.
"""

from __future__ import annotations

import numpy as np

from winnow.bounds import AtLeastOne
from winnow.records import FloatArray, IntArray, KeptRollouts
from winnow.registry import register


@register("weighting", total="one")
def token(kept: KeptRollouts) -> FloatArray:
    """1 / sum(L): every token counts the same (DAPO, Yu et al. 2025, arXiv 2503.14476, eq. 8)."""
    return _everywhere(kept, 1.0 / kept.lengths.sum())


@register("weighting", total="one")
def sequence(kept: KeptRollouts) -> FloatArray:
    """1 / (B L_i): every rollout counts the same (GRPO, Shao et al. 2024, arXiv 2402.03300, eq. 3)."""
    return 1.0 / (len(kept.lengths) * kept.lengths)


@register("weighting", total="one", share="equal")
def prompt(kept: KeptRollouts) -> FloatArray:
    """1 / (G * kept tokens of the prompt): every prompt counts the same, whatever its number of rollouts."""
    tokens = np.bincount(kept.group, weights=kept.lengths, minlength=len(kept.generated))
    return np.asarray(1.0 / (np.count_nonzero(tokens) * tokens[kept.group]), dtype=np.float64)


@register("weighting", total="constant")
def constant(kept: KeptRollouts, *, tokens: AtLeastOne | None = None) -> FloatArray:
    """1 / (B `tokens`), by default max_new_tokens: the weight does not depend on the length (Dr. GRPO, Liu et al. 2025,
    arXiv 2503.20783, section 3.2).
    """
    return _everywhere(kept, 1.0 / (len(kept.lengths) * (tokens or kept.max_new_tokens)))


@register("weighting", total="prompts", share="equal", needs=("pass_rates",))
def unbiased(kept: KeptRollouts) -> FloatArray:
    """1 / (G n_i p_i): with 0/1 advantages the gradient of mean log P(answer | prompt), whatever the allocation.

    Lemma 1 of GVM (Yao et al. 2025, arXiv 2505.02391), over the G prompts of the step's plan instead of their sum. G is
    fixed before sampling: a prompt without kept rollouts counts, and one that dynamic sampling adds does not. Otherwise
    the weight of a prompt would depend on the results of the others.

    n_i counts verified rollouts. p_i is the plan's pass rate, measured before these rollouts and independent of them.
    Where the plan has none, or 0, p_i is estimated from these rollouts and the weight becomes that of `accepted`:
    biased, but finite. All of this requires that every correct rollout is kept: a selector that drops some shrinks the
    gradient by their share.

    With a sampler whose draws have probabilities, the place of 1 / G is 1 / (P pi): P is the number of the task's
    prompts, and pi the probability that a step has this one (Horvitz and Thompson 1952). So the mean is over the task,
    and not over the prompts that the sampler prefers.
    """
    known = np.nan_to_num(kept.pass_rate) > 0
    accepted_rollouts = np.where(known, kept.valid * kept.pass_rate, np.maximum(kept.accepted, 1))
    if kept.share is None:
        return _per_prompt(kept, accepted_rollouts)
    return np.asarray((kept.share / accepted_rollouts)[kept.group], dtype=np.float64)


@register("weighting", total="prompts", share="equal")
def accepted(kept: KeptRollouts) -> FloatArray:
    """1 / (G * correct rollouts of the prompt): every prompt's correct rollouts count as one, where all are kept.

    The M-step of GVM's Algorithm 1 (arXiv 2505.02391), over the G prompts of the step's plan instead of their sum, as
    `unbiased` counts them. No correct rollout: 1 / G. Correct rollouts are counted before selection: where a selector
    drops some, the kept ones count as their share of one.
    """
    return _per_prompt(kept, np.maximum(kept.accepted, 1))


def _per_prompt(kept: KeptRollouts, rollouts: FloatArray | IntArray) -> FloatArray:
    return np.asarray(1.0 / (kept.planned * rollouts[kept.group]), dtype=np.float64)


def _everywhere(kept: KeptRollouts, value: float) -> FloatArray:
    return np.full(len(kept.lengths), value, dtype=np.float64)
