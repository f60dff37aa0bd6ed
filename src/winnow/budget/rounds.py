"""Sampling in rounds: after each round a rule decides how many further rollouts each prompt gets, until it needs none.

A rule is a function of a step's counts, `Counts` -> [G] further rollouts per prompt. It is called before the first
round, with nothing sampled, and after every round. It never exceeds what was planned for a prompt, so the plan is an
upper bound of what a step samples. It raises ValueError for an option outside its range. numpy only.

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

from winnow.bounds import AtLeastOne, Natural, ZeroToOne
from winnow.budget.arguments import check_alike, check_count, check_integers, check_number, ranged
from winnow.budget.pass_rates import rates
from winnow.records import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What was planned and what has been sampled so far, for G prompts; each array is [G]. Raises ValueError unless
    correct + wrong <= sampled <= planned.

    >>> seen = Counts(planned=np.array([8]), sampled=np.array([4]), correct=np.array([1]), wrong=np.array([2]))
    >>> seen.planned - seen.sampled
    array([4])
    """

    planned: IntArray  # rollouts of the step's plan
    sampled: IntArray  # rollouts of the rounds so far
    correct: IntArray  # verified and correct ones among these
    wrong: IntArray  # verified and not correct ones; a failed verdict is neither

    def __post_init__(self) -> None:
        arrays = {name: getattr(self, name) for name in ("planned", "sampled", "correct", "wrong")}
        check_alike(**arrays)
        for name, array in arrays.items():
            check_integers(name, array)
        if np.any(self.sampled > self.planned) or np.any(self.correct + self.wrong > self.sampled):
            raise ValueError("counts must be correct + wrong <= sampled <= planned")


Rule = Callable[[Counts], IntArray]

_EXACT = 1_000  # rollouts of a round up to which the number of ways to be correct is a float


def single(seen: Counts) -> IntArray:
    """All planned rollouts in one round."""
    return seen.planned - seen.sampled


@ranged
def balanced(seen: Counts, *, right: Natural = 2, wrong: Natural = 2, per_round: AtLeastOne = 8) -> IntArray:
    """`per_round` rollouts per round, until a prompt has `right` correct and `wrong` wrong ones.

    Reinforce-Ada-balance (Xiong et al. 2025, arXiv 2510.04996, Algorithm 1; checked against the authors' code,
    RLHFlow/Reinforce-Ada, verl/trainer/ppo/ray_trainer.py). There m kept rollouts need m // 2 correct and m - m // 2
    wrong ones, 8 are sampled per round, and there are at most 4 rounds. The first ones of each kind are trained on, and
    mean and deviation count all rollouts of all rounds (`global_stat_est` of its scripts). Ours keeps all rollouts too,
    and leaves to the selector which are trained on.
    """
    return _next_round(seen, (seen.correct >= right) & (seen.wrong >= wrong), per_round)


@ranged
def positive(seen: Counts, *, right: AtLeastOne = 1, per_round: AtLeastOne = 8) -> IntArray:
    """`per_round` rollouts per round, until a prompt has `right` correct ones: Reinforce-Ada-pos (arXiv 2510.04996)."""
    return _next_round(seen, seen.correct >= right, per_round)


@ranged
def pilot_commit(seen: Counts, *, pilot: AtLeastOne = 8, low: ZeroToOne = 0.25, high: ZeroToOne = 0.75) -> IntArray:
    """`pilot` rollouts first; the rest of the plan only for prompts whose share of correct ones is in [low, high].

    Pilot-Commit (Kim et al. 2026, arXiv 2605.26606; databricks/pilot-commit). The defaults of `low` and `high` are
    those of recipe/pc/config/pc_trainer.yaml, whose upper one is 1 - 0.25. The scripts and the README of that
    repository set the lower one to 0.125, with pilots of 8 to 32. There, the rollouts of a prompt that is not continued
    are not trained on, hard prompts wait in a buffer and easy ones are evicted. Ours leaves the first to the selector
    and the others to the sampler of prompts. A prompt without a verdict is continued. Raises ValueError for `low`
    above `high`.
    """
    check_number("low", low, most=high)
    return _continued(seen, pilot, lambda rate: (rate >= low) & (rate <= high))


@ranged
def screening(seen: Counts, *, pilot: AtLeastOne = 8) -> IntArray:
    """`pilot` rollouts first; the rest of the plan only for prompts with both correct and wrong ones among them.

    SPEED-RL (Zhang et al. 2025, arXiv 2506.09016, a preprint that its authors withdrew in March 2026): a prompt whose
    pass rate is near 0 or 1 has a gradient of low signal-to-noise ratio. Written from its description, not checked
    against the authors' code. There, the pilot of the next step is sampled together with the rest of this one.
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
    if the rule does not read verdicts. Raises ValueError for a pass rate outside [0, 1], for a negative plan, and where
    the rule does not stay within it.

    >>> distribution(lambda seen: positive(seen, per_round=1), 0.5, 2)
    {(1, 1): 0.5, (2, 0): 0.25, (2, 1): 0.25}
    """
    check_number("pass_rate", pass_rate, least=0.0, most=1.0)
    check_count("planned", planned)
    ends: dict[tuple[int, int], float] = defaultdict(float)
    open_states = {(0, 0): 1.0}
    while open_states:
        following: dict[tuple[int, int], float] = defaultdict(float)
        done, right = np.array(list(open_states), dtype=np.int64).T
        plan = np.full_like(done, planned)
        further = rule(Counts(planned=plan, sampled=done, correct=right, wrong=done - right))
        for ((sampled, correct), probability), more in zip(open_states.items(), further.tolist(), strict=True):
            if not 0 <= more <= planned - sampled:
                raise ValueError(f"the rule has {more} further rollouts after {sampled} of {planned}")
            if more == 0:
                ends[sampled, correct] += probability
                continue
            for hits in range(more + 1):
                following[sampled + more, correct + hits] += probability * _binomial(more, hits, pass_rate)
        open_states = dict(sorted(following.items()))
    return dict(sorted(ends.items()))


def _binomial(n: int, k: int, p: float) -> float:
    """The probability of k successes in n trials."""
    if n <= _EXACT:
        return math.comb(n, k) * p**k * (1 - p) ** (n - k)
    if p in (0.0, 1.0):
        return float(k == n * p)
    ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(ways + k * math.log(p) + (n - k) * math.log1p(-p))
