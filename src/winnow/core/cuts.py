"""Cuts the rollouts of a round after they are sampled and before they are verified, by the rule `cut`.

The rule decides from the lengths of all rollouts of the round, which the ranks exchange. Each rank then cuts its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from winnow import ranks
from winnow.budget.cuts import SampledRound
from winnow.families import CutTraits
from winnow.options import Bound
from winnow.records import Group, IntArray, Rollout
from winnow.user_code import Requested

Cut = Callable[[Sequence[int], Sequence[Group]], list[Group]]


def make_cut(rule: Bound[CutTraits], *, spent: int) -> Cut | None:
    """A function that cuts this rank's groups, given with the places of their prompts in the round; None for the rule
    that cuts nothing. `spent` is the number of tokens of the step's rounds before this one.
    """
    if not rule.traits.cuts:
        return None

    def cut(places: Sequence[int], groups: Sequence[Group]) -> list[Group]:
        reads = "logprobs" in rule.traits.reads
        own = {
            place: [(len(rollout.tokens), rollout.logprobs if reads else None) for rollout in group.rollouts]
            for place, group in zip(places, groups, strict=True)
        }
        every = {place: of for sent in ranks.gather_from_all(own, what="rollouts") for place, of in sent.items()}
        order = sorted(every)
        rollouts = [measured for place in order for measured in every[place]]
        sampled = SampledRound(
            lengths=np.array([length for length, _ in rollouts], dtype=np.int64),
            group=np.repeat(np.arange(len(order)), [len(every[place]) for place in order]),
            spent=spent,
            logprobs=[numbers for _, numbers in rollouts if numbers is not None] if reads else None,
        )
        ends = check_ends(rule(sampled), sampled.lengths)
        first = np.cumsum([0, *(len(every[place]) for place in order)])
        of_place = {place: ends[first[i] : first[i + 1]].tolist() for i, place in enumerate(order)}
        return [
            Group(prompt=group.prompt, rollouts=tuple(map(_cut_rollout, group.rollouts, of_place[place])))
            for place, group in zip(places, groups, strict=True)
        ]

    return cut


def check_ends(answer: object, lengths: IntArray) -> IntArray:
    """[R] int64 tokens of each rollout from the result of a rule. Raises ConfigError unless each is 0 to its length."""

    def fault(ends: IntArray) -> str | None:
        wrong = np.flatnonzero((ends < 0) | (ends > lengths))
        return f"{ends[wrong[0]]} tokens for a rollout of {lengths[wrong[0]]}" if len(wrong) else None

    requested = Requested(
        "the rule of cuts",
        f"{len(lengths)} rollouts",
        "return one integer per rollout, at least 0 and at most its length",
        "cut",
    )
    return requested.integers(answer, len(lengths), fault)


def _cut_rollout(rollout: Rollout, end: int) -> Rollout:
    """The rollout up to a token; the same object if that is its end. A cut rollout has no text: no reward reads it."""
    beyond = len(rollout.tokens) - end
    return dataclasses.replace(rollout.up_to(end), text="", finish="cut", beyond=beyond) if beyond else rollout
