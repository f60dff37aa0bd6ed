"""Rules that decide while a step samples: when a prompt has enough rollouts, and which rollouts are cut.

    family `round`   after a round: (rollouts seen) -> [G] how many more each prompt gets
    family `cut`     (the rollouts of a round) -> [R] tokens that each of them keeps

The rules are functions of numpy arrays in `winnow.budget.rounds` and `winnow.budget.cuts`. Here they are members.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from winnow.budget import cuts, rounds
from winnow.budget.cuts import SampledRound
from winnow.budget.rounds import Counts
from winnow.options import AboveZeroToOne, AtLeastOne, Natural, ZeroToOne
from winnow.records import IntArray
from winnow.registry import register


@register("round", reads_verdicts=False)
def single(seen: Counts) -> IntArray:
    """All planned rollouts in one round."""
    return rounds.single(seen)


@register("round")
def balanced(seen: Counts, *, right: Natural = 2, wrong: Natural = 2, per_round: AtLeastOne = 8) -> IntArray:
    """`per_round` rollouts per round, until a prompt has `right` correct and `wrong` wrong ones.

    Reinforce-Ada-balance (Xiong et al. 2025, arXiv 2510.04996); see `winnow.budget.rounds.balanced`.
    """
    return rounds.balanced(seen, right=right, wrong=wrong, per_round=per_round)


@register("round")
def positive(seen: Counts, *, right: AtLeastOne = 1, per_round: AtLeastOne = 8) -> IntArray:
    """`per_round` rollouts per round, until a prompt has `right` correct ones: Reinforce-Ada-pos (arXiv 2510.04996)."""
    return rounds.positive(seen, right=right, per_round=per_round)


@register("round")
def pilot_commit(seen: Counts, *, pilot: AtLeastOne = 8, low: ZeroToOne = 0.25, high: ZeroToOne = 0.75) -> IntArray:
    """`pilot` rollouts first; the rest only for prompts whose share of correct ones is in [low, high].

    Pilot-Commit (Kim et al. 2026, arXiv 2605.26606); see `winnow.budget.rounds.pilot_commit`.
    """
    return rounds.pilot_commit(seen, pilot=pilot, low=low, high=high)


@register("round")
def screening(seen: Counts, *, pilot: AtLeastOne = 8) -> IntArray:
    """`pilot` rollouts first; the rest only for prompts with correct and wrong ones among them: SPEED-RL (Zhang et al.
    2025, arXiv 2506.09016); see `winnow.budget.rounds.screening`.
    """
    return rounds.screening(seen, pilot=pilot)


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
