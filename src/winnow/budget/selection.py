"""Which rollouts of one prompt to train on: (rewards [N], ties [N]) -> [N] bool. And which prompts: (G arrays of
rewards, ties [G]) -> [G] bool.

`ties` are distinct numbers, one per rollout, which order the rollouts of equal reward: for example
`np.random.default_rng(seed).random(N)`, or a hash of the rollout's id. A mask depends on rewards and ties alone, never
on positions. Rewards are finite: remove a rollout that could not be judged first. Each function raises ValueError for
arrays of another shape, for rewards that are not finite, and for ties that are not different numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from winnow.bounds import AboveZeroToOne, Keep, NotNegative
from winnow.budget.arguments import check_count, ranged
from winnow.records import BoolArray, FloatArray, IntArray

FLAT = 1e-9  # times the size of the rewards: a smaller difference is one of rounding, as for winnow.algos.advantage
# Variances closer than this, relative to the spread of the rewards, are equal: rounding must not decide the scan.
_SAME = 1e-12


def max_variance(rewards: FloatArray, ties: FloatArray, *, keep_per_prompt: Keep = 4) -> BoolArray:
    """The m rollouts whose rewards have the largest variance: PODS, max-variance down-sampling.

    Xu, Savani, Fang, Kolter 2025 (arXiv 2504.13818), Algorithm 2: an optimal subset is the m - k lowest and the k
    highest rewards for some k (their Lemma 3.1). So one sort and one scan over k with prefix sums find it in O(N log
    N). Ours centres the rewards first (against cancellation) and of equal variances takes the smallest k; their code
    tries k = m, 0, 1, ... in that order. Both are optimal. m is `kept_size(keep_per_prompt, N)`, so m >= N keeps all; a
    flat group keeps any m.

    >>> max_variance(np.array([0.2, 0.4, 0.6, 0.8]), np.arange(4) / 4, keep_per_prompt=2)
    array([ True, False, False,  True])
    """
    order = _ascending(rewards, ties)
    size = kept_size(keep_per_prompt, len(rewards))
    low_to_high = rewards[order] - rewards.mean() if len(rewards) else rewards
    highest = _best_split(low_to_high, size)
    return _mask(len(rewards), np.concatenate([order[: size - highest], order[len(order) - highest :]]))


def max_reward(rewards: FloatArray, ties: FloatArray, *, keep_per_prompt: Keep = 4) -> BoolArray:
    """The m highest rewards; a baseline of the PODS paper (its Figure 5), which collapses because it never trains on
    failures.
    """
    order = _ascending(rewards, ties)
    return _mask(len(order), order[len(order) - kept_size(keep_per_prompt, len(order)) :])


def random(rewards: FloatArray, ties: FloatArray, *, keep_per_prompt: Keep = 4) -> BoolArray:
    """m rollouts, uniformly without replacement.

    They are those of the smallest `ties`, which have to be uniform.
    """
    n = len(_checked(rewards, ties))
    return _mask(n, np.argsort(ties, kind="stable")[: kept_size(keep_per_prompt, n)])


def percentile(rewards: FloatArray, ties: FloatArray, *, keep_per_prompt: Keep = 4) -> BoolArray:
    """m rollouts spread evenly over the ranks of the rewards: those at rank (i - 1/2) N / m, i = 1..m.

    Our extension; no published method has this name.
    """
    order = _ascending(rewards, ties)
    size = kept_size(keep_per_prompt, len(order))
    ranks = (np.arange(size) + 0.5) * len(order) / max(1, size)
    return _mask(len(order), order[ranks.astype(np.int64)])


def threshold(rewards: FloatArray, ties: FloatArray, *, low: float = -math.inf, high: float = math.inf) -> BoolArray:
    """Rollouts whose reward is in [low, high]; possibly none. RAFT's filter is low = 1.

    Raises ValueError unless low <= high.
    """
    rewards = _checked(rewards, ties)
    if not low <= high:
        raise ValueError(f"low = {low} must be at most high = {high}")
    return (rewards >= low) & (rewards <= high)


@ranged
def prompts_by_variance(
    rewards: Sequence[FloatArray], ties: FloatArray, *, share: AboveZeroToOne, margin: NotNegative = 0.0
) -> BoolArray:
    """The fewest prompts whose reward variances add up to at least `share` of the sum over all prompts, minus `margin`.

    The SNR-aware filter of RAGEN-2 (Wang et al. 2026, arXiv 2604.06268) in its linear form, which the authors
    recommend with share = 0.9 and margin = 0.01. The variance has ddof 1 and is 0 for fewer than two rewards. A prompt
    without variance is never kept. Nothing is kept if share times the sum is at most `margin`. `rewards` are G arrays
    of [N], and N may differ; `ties` [G] order the prompts of equal variance.

    >>> prompts_by_variance([np.array([0, 1.0]), np.array([1, 1.0]), np.array([0, 0.5])], np.arange(3.0), share=0.75)
    array([ True, False, False])
    """
    finite = [_checked(own, np.arange(len(own), dtype=np.float64)) for own in rewards]
    # Rewards that differ by rounding alone have no advantage, and a variance above 0
    mixed = [len(own) > 1 and np.ptp(own) > FLAT * max(1.0, float(np.abs(own).max())) for own in finite]
    variances = np.array([own.var(ddof=1) if of else 0.0 for own, of in zip(finite, mixed, strict=True)], np.float64)
    order = _ascending(-variances, ties)
    sums = variances[order].cumsum()
    wanted = share * sums[-1] - margin if len(sums) else 0.0
    size = int(np.searchsorted(sums, wanted)) + 1 if wanted > 0 else 0
    return _mask(len(order), order[:size]) & (variances > 0)


def kept_size(keep: int | float, n: int) -> int:
    """How many of n rollouts to keep: a count, or a share (a float up to 1.0, rounded, at least one rollout).

    Raises ValueError for a negative number, for a share outside (0, 1], and for what is neither an integer nor a float.

    >>> kept_size(4, 16), kept_size(4, 3), kept_size(0.25, 16), kept_size(0.01, 16)
    (4, 3, 4, 1)
    """
    check_count("n", n)
    if isinstance(keep, float):
        if not 0.0 < keep <= 1.0:
            raise ValueError(f"keep = {keep}: a share is above 0 and at most 1")
        return min(n, max(1, round(keep * n)))
    check_count("keep", keep)
    return min(n, keep)


def _best_split(low_to_high: FloatArray, size: int) -> int:
    """k in 0..size that maximises the variance of the size - k lowest and the k highest of sorted, centred values."""
    if size == 0:
        return 0
    prefix = np.zeros((2, len(low_to_high) + 1))  # sums of the first values and of the first squares
    squares = low_to_high * low_to_high
    low_to_high.cumsum(out=prefix[0, 1:])
    squares.cumsum(out=prefix[1, 1:])
    # For k in 0..size: the first size - k, and all but the first N - k
    outer = prefix[:, size::-1] + prefix[:, -1:] - prefix[:, ::-1][:, : size + 1]
    mean, square = outer / size
    variance = square - mean * mean
    return int((variance >= variance.max() - _SAME * squares.max()).argmax())


def _ascending(rewards: FloatArray, ties: FloatArray) -> IntArray:
    return np.lexsort((ties, _checked(rewards, ties))).astype(np.int64)


def _checked(rewards: FloatArray, ties: FloatArray) -> FloatArray:
    """The rewards. Raises ValueError if the two are not [N], a reward is not finite, or two ties are equal."""
    if np.ndim(rewards) != 1 or np.shape(rewards) != np.shape(ties):
        raise ValueError(f"rewards of shape {np.shape(rewards)} and ties of shape {np.shape(ties)}: both must be [N]")
    if not np.isfinite(rewards).all():
        raise ValueError("a reward is not finite: remove rollouts without a verdict before selecting")
    if len(set(ties.tolist())) < len(ties) or np.isnan(ties).any():
        raise ValueError("ties must be different numbers, as they order the rollouts of equal reward")
    return rewards


def _mask(n: int, chosen: IntArray) -> BoolArray:
    mask = np.zeros(n, dtype=np.bool_)
    mask[chosen] = True
    return mask
