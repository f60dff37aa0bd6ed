"""Which rollouts of a group are trained on.

A selector gets a group whose verdicts are all valid (a step removes failed rollouts) and returns [N] bool. It gets one
prompt at a time, so it cannot mix prompts. Ties are broken by a hash of the rollout's id (`rng`), never by position.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from winnow.budget import selection
from winnow.errors import wrong_result
from winnow.options import tried
from winnow.records import BoolArray, Group, as_array
from winnow.registry import register
from winnow.seeds import Rng

Selector = Callable[[Group, Rng], BoolArray]


def of_rewards(rule: Callable[..., BoolArray]) -> Callable[..., BoolArray]:
    """The selector of a rule of `winnow.budget.selection`, (rewards [N], ties [N]) -> [N] bool, with its options."""

    @functools.wraps(rule, assigned=("__name__", "__qualname__", "__doc__"))
    def select(group: Group, rng: Rng, **options: Any) -> BoolArray:
        return rule(group.rewards, rng.uniforms(group.ids), **options)

    return select


max_variance = register("selector")(of_rewards(selection.max_variance))
max_reward = register("selector")(of_rewards(selection.max_reward))
random = register("selector")(of_rewards(selection.random))
percentile = register("selector")(of_rewards(selection.percentile))
threshold = register("selector", size="varies", check=tried(selection.threshold, np.zeros(0), np.zeros(0)))(
    of_rewards(selection.threshold)
)


@register("selector", "all", size="all")
def keep_all(group: Group, rng: Rng) -> BoolArray:
    """Every rollout."""
    return np.ones(len(group.rollouts), dtype=np.bool_)


@register("selector", size="varies")
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
        keep = np.ones(len(group.rollouts), dtype=np.bool_)
        for selector in selectors:
            if keep.any():
                left = group.take(keep)
                keep[keep] = checked_mask(selector(left, rng), len(left.rollouts))
        return keep

    return select


def checked_mask(answer: object, n: int) -> BoolArray:
    """A selector's result. Raises ConfigError if it is not [N] bool."""
    mask = as_array(answer)
    if mask.shape != (n,) or mask.dtype != np.bool_:
        raise wrong_result(
            f"the selector returned {mask.dtype} of shape {mask.shape} for {n} rollouts",
            remedy="return a mask, one bool per rollout",
            key="select",
        )
    return mask


def keep_verified(select: Selector, group: Group, rng: Rng) -> BoolArray:
    """[N] what the selector keeps of the verified rollouts, which are all that it gets. A failed one is never kept."""
    keep, valid = np.zeros(len(group.rollouts), dtype=np.bool_), group.valid
    if valid.any():
        keep[valid] = select(group.take(valid), rng)
    return keep
