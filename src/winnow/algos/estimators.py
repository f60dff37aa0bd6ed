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


def _pass_at_k(correct: int, rollouts: int, k: int) -> float:
    if rollouts < k:
        return math.nan
    return 1.0 - math.comb(rollouts - correct, k) / math.comb(rollouts, k)
