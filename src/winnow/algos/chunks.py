"""Selection and advantages in chunks of a prompt's rollouts.

A chunk is a group of its own, defined by the rollouts' indices and never by their places. So a rollout that failed, or
that an earlier selector dropped, moves no other rollout into another chunk. PODS on several devices (Xu et al. 2025,
arXiv 2504.13818; YixuanEvenXu/pods, open-r1) samples 512 rollouts of a prompt, and keeps and compares 32 of each 128.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from winnow.algos.advantage import Credit, check_credits
from winnow.algos.selectors import Selector, checked_mask
from winnow.bounds import Keep
from winnow.budget.selection import kept_size
from winnow.records import BoolArray, Group, IntArray
from winnow.seeds import Rng

Advantage = Callable[[Sequence[Group]], Sequence[Any]]


def in_chunks(group: Group, size: int) -> list[IntArray]:
    """Places of the rollouts with indices 0 to size - 1, of the next `size` indices, and so on; no chunk is empty."""
    chunk = np.array([rollout.index // size for rollout in group.rollouts], dtype=np.int64)
    return [np.flatnonzero(chunk == number) for number in np.unique(chunk)]


def select_in_chunks(select: Selector, size: int) -> Selector:
    """The selector, applied to each chunk separately. Raises ConfigError if it does not return [N] bool."""

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
