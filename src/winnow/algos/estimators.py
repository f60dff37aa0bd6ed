"""Estimates of what a policy can do, from a few rollouts."""

from __future__ import annotations

import math

import numpy as np

from winnow.records import FloatArray, IntArray


def pass_at_k(correct: IntArray, rollouts: IntArray, k: int) -> FloatArray:
    """[G] chance that at least one of k rollouts is correct, from `correct` of `rollouts`; NaN where rollouts < k.

    1 - C(n - c, k) / C(n, k): unbiased (Chen et al. 2021, arXiv 2107.03374, eq. 1).
    """
    return np.array([_pass_at_k(int(c), int(n), k) for c, n in zip(correct, rollouts, strict=True)], dtype=np.float64)


def standard_error(values: FloatArray) -> float:
    """Of the mean of independent values (ddof 1); NaN for fewer than two."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def truncated_importance(old_logprobs: FloatArray, behaviour_logprobs: FloatArray, *, most: float) -> FloatArray:
    """[L] min(p_old / p_behaviour, most): corrects for an engine that samples from slightly other probabilities.

    Truncated importance sampling (Ionides 2008), per token as in Yao et al. 2025, "Your efficient RL framework secretly
    brings you off-policy RL training". The bound trades a little bias for a bounded variance.
    """
    return np.minimum(np.exp(old_logprobs - behaviour_logprobs), most)


def _pass_at_k(correct: int, rollouts: int, k: int) -> float:
    if rollouts < k:
        return math.nan
    return 1.0 - math.comb(rollouts - correct, k) / math.comb(rollouts, k)
