"""What a rule of rounds does to the expected gradient of a prompt, for an advantage on 0/1 rewards, by enumeration.

The gradient is the mean over a prompt's n rollouts of advantage times the gradient of the log-prob, as with all
rollouts kept and each prompt weighing the same. A factor divides its expected value by that of infinitely many rollouts
in one round. `cuts.expected` computes the same for a cut.

A rule multiplies the gradient of a prompt by a factor that depends on its pass rate. So it weighs prompts anew, and a
factor of 1 at every pass rate leaves the objective as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from winnow.budget.arguments import check_number
from winnow.budget.rounds import Rule, distribution

Pair = tuple[float, float]  # the advantage of a correct rollout, and of a wrong one


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """An advantage as a function of what it reads on 0/1 rewards: the rollouts of a prompt, and its correct ones."""

    of: Callable[[int, int], Pair]  # (rollouts, correct ones); at least one rollout
    limit: Callable[[float], Pair]  # (pass rate), for infinitely many rollouts


CENTRED = Credit(of=lambda n, correct: (1 - correct / n, -correct / n), limit=lambda p: (1 - p, -p))
"""r - mean."""


def round_factor(rule: Rule, pass_rate: float, planned: int, credit: Credit = CENTRED) -> float:
    """The expected gradient under a rule of rounds, relative to that of infinitely many rollouts in one round.

    Given their verdicts, rollouts are independent, and the gradient of the log-prob is on average d/p for a correct one
    and -d/(1 - p) for a wrong one, if d is the gradient of the pass rate p. So the expected gradient is d times the
    mean of (c A_right / p - (n - c) A_wrong / (1 - p)) / n over the results of n rollouts with c correct ones. A plan
    that samples nothing has a gradient of 0. Raises ValueError for a pass rate outside (0, 1), for a credit that is
    equal for both, and as `distribution`.

    >>> from winnow.budget.rounds import single
    >>> round_factor(single, 0.25, 16)
    0.9375
    """
    check_number("pass_rate", pass_rate, above=0.0)
    check_number("1 - pass_rate", 1 - pass_rate, above=0.0)
    ends = distribution(rule, pass_rate, planned).items()
    found = sum(chance * _slope(credit.of(n, correct), correct / n, pass_rate) for (n, correct), chance in ends if n)
    limit = _slope(credit.limit(pass_rate), pass_rate, pass_rate)
    if limit == 0:
        raise ValueError("credit: equal for correct and wrong rollouts, so there is no gradient to compare with")
    return found / limit


def _slope(advantages: Pair, share: float, pass_rate: float) -> float:
    """The gradient along that of the pass rate, if `share` of the rollouts are correct."""
    right, wrong = advantages
    return share * right / pass_rate - (1 - share) * wrong / (1 - pass_rate)
