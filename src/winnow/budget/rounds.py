"""Sampling in rounds: after each round a rule decides how many further rollouts each prompt gets, until it needs none.

A rule is a function of a step's counts, `Counts` -> [G] further rollouts per prompt. It is called before the first
round, with nothing sampled, and after every round. It never exceeds what was planned for a prompt, so the plan is an
upper bound of what a step samples. numpy only.

A rule that reads the verdicts changes what is estimated from them: a prompt that ends at its first success has a higher
share of correct rollouts than its pass rate. `distribution` enumerates a rule's results, from which the bias of every
estimate follows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from winnow.budget.pass_rates import rates
from winnow.records import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What was planned and what has been sampled so far, for G prompts; each array is [G].

    >>> seen = Counts(planned=np.array([8]), sampled=np.array([4]), correct=np.array([1]), wrong=np.array([2]))
    >>> seen.planned - seen.sampled
    array([4])
    """

    planned: IntArray  # rollouts of the step's plan
    sampled: IntArray  # rollouts of the rounds so far
    correct: IntArray  # verified and correct ones among these
    wrong: IntArray  # verified and not correct ones; a failed verdict is neither


Rule = Callable[[Counts], IntArray]


def single(seen: Counts) -> IntArray:
    """All planned rollouts in one round."""
    return seen.planned - seen.sampled


def balanced(seen: Counts, *, right: int = 2, wrong: int = 2, per_round: int = 8) -> IntArray:
    """`per_round` rollouts per round, until a prompt has `right` correct and `wrong` wrong ones.

    Reinforce-Ada-balance (Xiong et al. 2025, arXiv 2510.04996, Algorithm 1; checked against the authors' code, where m
    kept rollouts need m // 2 correct and m - m // 2 wrong ones, 8 are sampled per round, and there are at most 4
    rounds). Ours keeps all rollouts, and leaves the choice of those that are trained on to the selector. Their code
    ignores rollouts of a round that come after a prompt has enough.
    """
    return _next_round(seen, (seen.correct >= right) & (seen.wrong >= wrong), per_round)


def positive(seen: Counts, *, right: int = 1, per_round: int = 8) -> IntArray:
    """`per_round` rollouts per round, until a prompt has `right` correct ones: Reinforce-Ada-pos (arXiv 2510.04996)."""
    return _next_round(seen, seen.correct >= right, per_round)


def pilot_commit(seen: Counts, *, pilot: int = 8, low: float = 0.25, high: float = 0.75) -> IntArray:
    """`pilot` rollouts first; the rest of the plan only for prompts whose share of correct ones is in [low, high].

    Pilot-Commit (Kim et al. 2026, arXiv 2605.26606; thresholds and pilot of the authors' code, whose upper one is 1 -
    0.25). There, the rollouts of a prompt that is not continued are not trained on, hard prompts wait in a buffer and
    easy ones are evicted. Ours leaves the first to the selector and the others to the sampler of prompts. A prompt
    without a verdict is continued.
    """
    return _continued(seen, pilot, lambda rate: (rate >= low) & (rate <= high))


def screening(seen: Counts, *, pilot: int = 8) -> IntArray:
    """`pilot` rollouts first; the rest of the plan only for prompts with both correct and wrong ones among them.

    SPEED-RL (Zhang et al. 2025, arXiv 2506.09016): a prompt whose pass rate is near 0 or 1 has a gradient of low
    signal-to-noise ratio. Written from its description, not checked against the authors' code. There, the pilot of
    the next step is sampled together with the rest of this one.
    """
    return _continued(seen, pilot, lambda rate: (rate > 0) & (rate < 1))


def _next_round(seen: Counts, enough: BoolArray, per_round: int) -> IntArray:
    return np.where(enough, 0, np.minimum(per_round, seen.planned - seen.sampled))


def _continued(seen: Counts, pilot: int, worthwhile: Callable[[FloatArray], BoolArray]) -> IntArray:
    first = np.minimum(pilot, seen.planned)
    rate = rates(seen.correct, seen.correct + seen.wrong)
    rest = np.where(np.isnan(rate) | worthwhile(rate), seen.planned - seen.sampled, 0)
    return np.where(seen.sampled < first, first - seen.sampled, rest)


def distribution(rule: Rule, pass_rate: float, planned: int) -> dict[tuple[int, int], float]:
    """(rollouts, correct ones) -> its probability, for one prompt with a pass rate and independent verdicts.

    The expected share of correct rollouts is the sum of probability * correct / rollouts. It equals `pass_rate` only
    if the rule does not read verdicts.

    >>> distribution(lambda seen: positive(seen, per_round=1), 0.5, 2)
    {(1, 1): 0.5, (2, 0): 0.25, (2, 1): 0.25}
    """
    ends: dict[tuple[int, int], float] = defaultdict(float)
    open_states = {(0, 0): 1.0}
    while open_states:
        following: dict[tuple[int, int], float] = defaultdict(float)
        for (sampled, correct), probability in sorted(open_states.items()):
            more = int(rule(_one(planned, sampled, correct))[0])
            if more == 0:
                ends[sampled, correct] += probability
                continue
            for hits in range(more + 1):
                chance = math.comb(more, hits) * pass_rate**hits * (1 - pass_rate) ** (more - hits)
                following[sampled + more, correct + hits] += probability * chance
        open_states = following
    return dict(sorted(ends.items()))


def _one(planned: int, sampled: int, correct: int) -> Counts:
    numbers = (np.array([number], dtype=np.int64) for number in (planned, sampled, correct, sampled - correct))
    return Counts(**dict(zip(("planned", "sampled", "correct", "wrong"), numbers, strict=True)))
