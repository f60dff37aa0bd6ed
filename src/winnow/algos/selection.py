"""Which rollouts of a group are trained on.

A selector gets a group whose verdicts are all valid (a step removes failed rollouts) and returns [N] bool. It gets one
prompt at a time, so it cannot mix prompts. Ties are broken by a hash of the rollout's id (`rng`), never by position.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from winnow.errors import ConfigError
from winnow.records import BoolArray, FloatArray, Group, IntArray, as_array
from winnow.registry import register
from winnow.seeds import Rng

Count = Annotated[int, Field(gt=0, strict=True)]
Share = Annotated[float, Field(gt=0.0, le=1.0, strict=True)]
Keep = Count | Share
Selector = Callable[[Group, Rng], BoolArray]

# Variances closer than this, relative to the spread of the rewards, are equal: rounding must not decide the scan.
_SAME = 1e-12


@register("selector", "all", size="all")
def keep_all(group: Group, rng: Rng) -> BoolArray:
    """Every rollout."""
    return np.ones(len(group.rollouts), dtype=np.bool_)


@register("selector")
def max_variance(group: Group, rng: Rng, *, keep_per_prompt: Keep = 4) -> BoolArray:
    """The m rollouts whose rewards have the largest variance: PODS, max-variance down-sampling.

    Xu, Savani, Fang, Kolter 2025 (arXiv 2504.13818), Algorithm 2: an optimal subset is the m - k lowest and the k
    highest rewards for some k (their Lemma 3.1). So one sort and one scan over k with prefix sums find it in O(N log
    N). Ours centres the rewards first (against cancellation) and of equal variances takes the smallest k; their code
    tries k = m, 0, 1, ... in that order. Both are optimal. m >= N keeps all; a flat group keeps any m.
    """
    rewards = group.rewards
    size = kept_size(keep_per_prompt, len(rewards))
    order = _ascending(rewards, rng.uniforms(group.ids))
    low_to_high = rewards[order] - rewards.mean() if len(rewards) else rewards
    highest = _best_split(low_to_high, size)
    return _mask(len(rewards), np.concatenate([order[: size - highest], order[len(order) - highest :]]))


@register("selector")
def max_reward(group: Group, rng: Rng, *, keep_per_prompt: Keep = 4) -> BoolArray:
    """The m highest rewards; a baseline of the PODS paper (its Figure 5), which collapses because it never trains on
    failures.
    """
    order = _ascending(group.rewards, rng.uniforms(group.ids))
    return _mask(len(order), order[len(order) - kept_size(keep_per_prompt, len(order)) :])


@register("selector")
def random(group: Group, rng: Rng, *, keep_per_prompt: Keep = 4) -> BoolArray:
    """m rollouts, uniformly without replacement."""
    order = np.argsort(rng.uniforms(group.ids), kind="stable")
    return _mask(len(order), order[: kept_size(keep_per_prompt, len(order))])


@register("selector")
def percentile(group: Group, rng: Rng, *, keep_per_prompt: Keep = 4) -> BoolArray:
    """m rollouts spread evenly over the ranks of the rewards: those at rank (i - 1/2) N / m, i = 1..m.

    Our extension; no published method has this name.
    """
    order = _ascending(group.rewards, rng.uniforms(group.ids))
    size = kept_size(keep_per_prompt, len(order))
    ranks = (np.arange(size) + 0.5) * len(order) / max(1, size)
    return _mask(len(order), order[ranks.astype(np.int64)])


@register("selector", size="varies")
def threshold(group: Group, rng: Rng, *, low: float = -math.inf, high: float = math.inf) -> BoolArray:
    """Rollouts whose reward is in [low, high]; possibly none. RAFT's filter is low = 1."""
    rewards = group.rewards
    return (rewards >= low) & (rewards <= high)


@register(
    "selector",
    size="varies",
    instead_of={"mask_truncated_completions": "TRL's option of this name; advantage.statistics = 'group' goes with it"},
)
def finished(group: Group, rng: Rng) -> BoolArray:
    """Rollouts that ended by themselves, without those cut off at max_new_tokens; possibly none.

    Overlong filtering (DAPO: Yu et al. 2025, arXiv 2503.14476, section 3.4): the answer of a rollout that was cut off
    is unknown, so its reward is noise. By default such a rollout is not in the baseline either, which is over kept
    rollouts; advantage.statistics = "group" includes it.
    """
    return np.array([rollout.finish == "stop" for rollout in group.rollouts], dtype=np.bool_)


def chain(selectors: Sequence[Selector]) -> Selector:
    """One selector from several: each gets only the rollouts that its predecessor kept, while any are left.

    The selector raises ConfigError when one of them does not return [N] bool.
    """

    def select(group: Group, rng: Rng) -> BoolArray:
        left = np.arange(len(group.rollouts))
        for selector in selectors:
            if len(left):
                left = left[checked_mask(selector(group.take(left), rng), len(left))]
        return _mask(len(group.rollouts), left)

    return select


def kept_size(keep_per_prompt: Keep, n: int) -> int:
    """How many of n rollouts to keep: a count, or a share (a float up to 1.0, rounded, at least one rollout)."""
    if isinstance(keep_per_prompt, float):
        return min(n, max(1, round(keep_per_prompt * n)))
    return min(n, keep_per_prompt)


def checked_mask(answer: object, n: int) -> BoolArray:
    """A selector's result. Raises ConfigError where it is not [N] bool."""
    mask = as_array(answer)
    if mask.shape != (n,) or mask.dtype != np.bool_:
        raise ConfigError(
            f"the selector returned {mask.dtype} of shape {mask.shape} for {n} rollouts",
            remedy="return a mask, one bool per rollout",
            key="select",
            code="config.member_result",
        )
    return mask


def _best_split(low_to_high: FloatArray, size: int) -> int:
    """k in 0..size that maximises the variance of the size - k lowest and the k highest of sorted, centred values."""
    if size == 0:
        return 0
    k = np.arange(size + 1)
    n = len(low_to_high)
    sums = _outer_sums(low_to_high, size - k, n - k)
    squares = _outer_sums(low_to_high**2, size - k, n - k)
    variance = squares / size - (sums / size) ** 2
    tolerance = _SAME * float(np.max(low_to_high**2))
    return int(np.argmax(variance >= variance.max() - tolerance))


def _outer_sums(values: FloatArray, below: IntArray, above: IntArray) -> FloatArray:
    """For each k: the sum of values[:below[k]] and values[above[k]:]."""
    prefix = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(prefix[below] + prefix[-1] - prefix[above], dtype=np.float64)


def _ascending(values: FloatArray, ties: FloatArray) -> IntArray:
    return np.lexsort((ties, values)).astype(np.int64)


def _mask(n: int, chosen: IntArray) -> BoolArray:
    mask = np.zeros(n, dtype=np.bool_)
    mask[chosen] = True
    return mask
