"""Which rollouts of a group are trained on.

A selector gets a group whose verdicts are all valid (a step removes failed rollouts) and returns [N] bool. It gets one
prompt at a time, so it cannot mix prompts. Ties are broken by a hash of the rollout's id (`rng`), never by position.

Selection and advantages may be computed in chunks of a prompt's rollouts. A chunk is a group of its own, defined by the
rollouts' indices and never by their places. So a rollout that failed, or that an earlier selector dropped, moves no
other rollout into another chunk. PODS on several devices (Xu et al. 2025, arXiv 2504.13818; YixuanEvenXu/pods, open-r1)
samples 512 rollouts of a prompt, and keeps and compares 32 of each 128.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from winnow.algos.advantage import Credit, check_credits
from winnow.bounds import Keep
from winnow.budget import selection
from winnow.budget.selection import kept_size
from winnow.errors import ConfigError
from winnow.options import tried
from winnow.records import BoolArray, Group, IntArray, as_array
from winnow.registry import register
from winnow.seeds import Rng

Selector = Callable[[Group, Rng], BoolArray]
Advantage = Callable[[Sequence[Group]], Sequence[Any]]


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
        keep = np.ones(len(group.rollouts), dtype=np.bool_)
        for selector in selectors:
            if keep.any():
                left = group.take(keep)
                keep[keep] = checked_mask(selector(left, rng), len(left.rollouts))
        return keep

    return select


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


def keep_verified(select: Selector, group: Group, rng: Rng) -> BoolArray:
    """[N] what the selector keeps of the verified rollouts, which are all that it gets. A failed one is never kept."""
    keep, valid = np.zeros(len(group.rollouts), dtype=np.bool_), group.valid
    if valid.any():
        keep[valid] = select(group.take(valid), rng)
    return keep


def in_chunks(group: Group, size: int) -> list[IntArray]:
    """Places of the rollouts with indices 0 to size - 1, of the next `size` indices, and so on; no chunk is empty."""
    chunk = np.array([rollout.index // size for rollout in group.rollouts], dtype=np.int64)
    return [np.flatnonzero(chunk == number) for number in np.unique(chunk)]


def select_in_chunks(select: Selector, size: int) -> Selector:
    """The selector, applied to each chunk separately. Raises ConfigError where it does not return [N] bool."""

    def selected(group: Group, rng: Rng) -> BoolArray:
        mask = np.zeros(len(group.rollouts), dtype=np.bool_)
        for places in in_chunks(group, size):
            mask[places] = checked_mask(select(group.take(places), rng), len(places))
        return mask

    return selected


def credit_in_chunks(advantage: Advantage, size: int) -> Advantage:
    """The advantage, with each chunk as a separate group. Raises ConfigError for a result that is not an advantage."""

    def credit(groups: Sequence[Group]) -> list[Credit]:
        cuts = [in_chunks(group, size) for group in groups]
        parts = [group.take(places) for group, cut in zip(groups, cuts, strict=True) for places in cut]
        credits = iter(check_credits(advantage(parts), parts))
        return [_joined([(places, next(credits)) for places in cut]) for cut in cuts]

    return credit


def kept_in_chunks(keep_per_prompt: Keep, n: int, size: int) -> int:
    """Number of rollouts 0 to n - 1 that a selector keeps in chunks of `size`."""
    whole, rest = divmod(n, size)
    return whole * kept_size(keep_per_prompt, size) + kept_size(keep_per_prompt, rest) * bool(rest)


def _joined(parts: Sequence[tuple[IntArray, Credit]]) -> Credit:
    """Advantages of a group's chunks, each with its places -> advantages of all its rollouts: [N], or N x [L]."""
    by_place = {int(place): number for places, credit in parts for place, number in zip(places, credit, strict=True)}
    numbers = tuple(by_place[place] for place in sorted(by_place))
    per_token = any(isinstance(credit, tuple) for _, credit in parts)
    return numbers if per_token else np.array(numbers, dtype=np.float64)
