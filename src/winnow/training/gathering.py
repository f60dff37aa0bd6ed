"""Gathers the judged groups of all ranks on every rank, so that each rank computes the same selection and advantages.

A token is sent as 8 bytes: its id as int32 and its log-prob as float32. Log-probs that float32 would round (of a
float64 policy) are sent as float64, so gathering changes no number. Prompts are not sent, as every rank has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from winnow import ranks
from winnow.records import FloatArray, Group, IntArray, Outcome, Prompt, Rollout

_LIGHT = ("index", "text", "finish", "version", "trainable")  # the other fields of a rollout


def gather_groups(prompts: Sequence[Prompt], own: Sequence[int], groups: Sequence[Group]) -> list[Group]:
    """[G] the judged group of each prompt. `groups` are those of this rank, for the prompts at the places `own`.

    Every prompt belongs to exactly one rank. Each rollout is marked with the rank that sampled it.
    """
    if ranks.count() == 1:
        return list(groups)
    gathered: dict[int, Group] = {}
    for rank, sent in enumerate(ranks.gather_from_all(_Sent.of(own, groups), what="rollouts")):
        gathered |= sent.groups(prompts, rank)
    return [gathered[place] for place in range(len(prompts))]


@dataclass(frozen=True)
class _Sent:
    """Groups of one rank in the form in which they are sent: flat over their rollouts."""

    places: list[int]  # [g] places of their prompts
    counts: list[int]  # [g] rollouts per group
    lengths: list[int]  # tokens per rollout
    tokens: Any  # int32, rollout after rollout
    logprobs: Any  # float32 or float64, rollout after rollout
    rest: list[tuple[Any, ...]]  # per rollout, the fields of _LIGHT
    outcomes: list[Outcome]

    @classmethod
    def of(cls, places: Sequence[int], groups: Sequence[Group]) -> Self:
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        logprobs = _joined([rollout.logprobs for rollout in rollouts], np.float64)
        narrow = logprobs.astype(np.float32)
        return cls(
            places=list(places),
            counts=[len(group.rollouts) for group in groups],
            lengths=[len(rollout.tokens) for rollout in rollouts],
            tokens=_joined([rollout.tokens for rollout in rollouts], np.int64).astype(np.int32),
            logprobs=narrow if np.array_equal(narrow, logprobs, equal_nan=True) else logprobs,
            rest=[tuple(getattr(rollout, name) for name in _LIGHT) for rollout in rollouts],
            outcomes=[outcome for group in groups for outcome in group.outcomes or ()],
        )

    def groups(self, prompts: Sequence[Prompt], rank: int) -> dict[int, Group]:
        """The groups by the places of their prompts."""
        each = zip(self._rollouts(rank), self.outcomes, strict=True)
        groups = {}
        for place, count in zip(self.places, self.counts, strict=True):
            pairs = [next(each) for _ in range(count)]
            rollouts, outcomes = tuple(r for r, _ in pairs), tuple(o for _, o in pairs)
            groups[place] = Group(prompt=prompts[place], rollouts=rollouts, outcomes=outcomes)
        return groups

    def _rollouts(self, rank: int) -> Iterator[Rollout]:
        ends = np.cumsum(self.lengths)[:-1]
        tokens, logprobs = self.tokens.astype(np.int64), self.logprobs.astype(np.float64)
        # Not strict: without rollouts, np.split returns one empty part
        for ids, numbers, rest in zip(np.split(tokens, ends), np.split(logprobs, ends), self.rest, strict=False):
            yield Rollout(tokens=ids, logprobs=numbers, rank=rank, **dict(zip(_LIGHT, rest, strict=True)))


def _joined(arrays: Sequence[IntArray] | Sequence[FloatArray], dtype: Any) -> Any:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=dtype)
