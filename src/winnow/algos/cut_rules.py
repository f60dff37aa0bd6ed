"""Which rollouts are cut while they are sampled: (the rollouts of a round) -> [R] tokens that each of them gets.

The rules are functions of numpy arrays in `winnow.budget.cuts`. Here they are members of the family `cut`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from winnow.budget import cuts
from winnow.budget.cuts import SampledRound
from winnow.options import AboveZeroToOne, AtLeastOne
from winnow.records import IntArray
from winnow.registry import register

LogProb = Annotated[float, Field(le=0)]


@register("cut", cuts=False)
def none(sampled: SampledRound) -> IntArray:
    """No rollout is cut."""
    return cuts.none(sampled)


@register("cut")
def token_budget(sampled: SampledRound, *, tokens: AtLeastOne) -> IntArray:
    """All rollouts end at the last tick at which the step has no more than `tokens` tokens. Ours.

    Earlier rounds of the step count, those of dynamic sampling included.
    """
    return cuts.token_budget(sampled, tokens=tokens)


@register("cut")
def stragglers(sampled: SampledRound, *, share: AboveZeroToOne = 0.75) -> IntArray:
    """The other rollouts of a prompt end when `share` of them are finished; see `winnow.budget.cuts.stragglers`."""
    return cuts.stragglers(sampled, share=share)


@register("cut", reads=("logprobs",))
def unlikely(sampled: SampledRound, *, after: AtLeastOne = 16, least: LogProb = -1.0) -> IntArray:
    """A rollout ends after `after` tokens if their mean log-prob is below `least`, in nats; see
    `winnow.budget.cuts.unlikely`.
    """
    return cuts.unlikely(sampled, after=after, least=least)
