"""When a prompt has enough rollouts: after each round of sampling, a rule returns how many more each prompt gets.

The rules are functions of numpy arrays in `winnow.budget.rounds`. Here they are members of the family `round`.
"""

from __future__ import annotations

from winnow.budget import rounds
from winnow.budget.rounds import Counts
from winnow.options import AtLeastOne, Natural, ZeroToOne
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
