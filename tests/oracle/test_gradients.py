"""The factors of an expected gradient by hand, and against a policy whose gradient is known."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from winnow.algos.advantage import grpo
from winnow.budget.gradients import CENTRED, Credit, round_factor
from winnow.budget.rounds import balanced, distribution, pilot_commit, positive, screening, single
from winnow.options import bind
from winnow.registry import members
from winnow.testing import group_of
from winnow.training.factors import credits_of

FIVE = (0.05, 0.25, 0.5, 0.75, 0.95)
RULES = {
    "single": single,
    "balanced": functools.partial(balanced, per_round=4),
    "positive": functools.partial(positive, per_round=4),
    "pilot_commit": functools.partial(pilot_commit, pilot=4),
    "screening": functools.partial(screening, pilot=4),
}


def of_member(name, **options):
    return credits_of(bind(members("advantage")[name], options, key="advantage"))


def factors(rule, name):
    credits = of_member(name)
    return [round_factor(rule, p, 16, credits(p)) for p in FIVE]


def test_r_minus_the_mean_of_two_rollouts():
    """Of two rollouts one is right with 2 p (1 - p); then (1/2 / p + 1/2 / (1 - p)) / 2 = 1 / (4 p (1 - p)): 1/2."""
    assert [round_factor(single, p, 2) for p in FIVE] == pytest.approx([0.5] * 5)
    assert [round_factor(single, p, 2, of_member("rloo")(p)) for p in FIVE] == pytest.approx([1.0] * 5, rel=1e-5)


def test_a_rule_that_ends_at_the_first_success():
    """One at a time, at most two: right (p), wrong then right (p q), both wrong. Credit r: p / p + p q / 2 / p."""
    rule = functools.partial(positive, per_round=1)
    raw = Credit(of=lambda n, correct: (1.0, 0.0), limit=lambda p: (1.0, 0.0))
    for p in FIVE:
        assert round_factor(rule, p, 2, raw) == pytest.approx(1 + (1 - p) / 2)


def test_the_numbers_of_balanced_under_grpo_and_rloo():
    assert factors(RULES["balanced"], "grpo") == pytest.approx([0.71, 0.91, 0.87, 0.91, 0.71], abs=0.005)
    assert factors(RULES["balanced"], "rloo") == pytest.approx([1.16, 1.19, 1.12, 1.19, 1.16], abs=0.005)
    assert factors(single, "rloo") == pytest.approx([1.0] * 5, abs=1e-5)
    assert factors(single, "grpo") == pytest.approx([0.69, 0.92, 0.94, 0.92, 0.69], abs=0.005)


CLOSED = {
    "dr_grpo": (lambda n, c: (1 - c / n, -c / n), lambda p: (1 - p, -p)),
    "rloo": (lambda n, c: ((n - c) / (n - 1), -c / (n - 1)), lambda p: (1 - p, -p)),
    "maxrl": (lambda n, c: (n / c - 1, -1.0), lambda p: (1 / p - 1, -1.0)),
}


@pytest.mark.parametrize("name", CLOSED)
@pytest.mark.parametrize("rule", RULES)
def test_credit_from_a_member_is_that_of_its_equation(name, rule):
    """A flat group and a single rollout have none, in each of these."""

    def of(n, c):
        return CLOSED[name][0](n, c) if 0 < c < n else (0.0, 0.0)

    by_hand = Credit(of=of, limit=CLOSED[name][1])
    expected = [round_factor(RULES[rule], p, 16, by_hand) for p in FIVE]
    assert factors(RULES[rule], name) == pytest.approx(expected, rel=1e-5)


def test_a_baseline_of_the_step_is_a_constant_in_a_large_step():
    """r - p over the deviation at p: ((1 - p) m / p + p (1 - m) / (1 - p)), where m is the mean share of right ones."""
    for name, rule in RULES.items():
        for p, found in zip(FIVE, factors(rule, "batch"), strict=True):
            share = sum(chance * c / n for (n, c), chance in distribution(rule, p, 16).items())
            assert found == pytest.approx((1 - p) * share / p + p * (1 - share) / (1 - p), rel=1e-9), name


@pytest.mark.parametrize("rule", ["single", "balanced", "pilot_commit"])
def test_factors_are_those_of_a_policy_s_gradient(rule):
    """A policy with one logit: p = sigmoid(x), and d log P(right) = 1 - p, d log P(wrong) = -p; so d p = p (1 - p).
    All sequences of 6 rollouts are enumerated, with the advantage of `grpo`.
    """
    p, planned = 0.3, 6
    one = {"single": single, "balanced": functools.partial(balanced, right=1, wrong=1, per_round=2)}
    of = one.get(rule, functools.partial(pilot_commit, pilot=2, low=0.25, high=0.75))
    total = 0.0
    for verdicts in itertools.product((0, 1), repeat=planned):
        sampled = 0
        while (more := int(of(_seen(planned, verdicts[:sampled]))[0])) > 0:
            sampled += more
        taken = np.array(verdicts[:sampled], dtype=np.float64)
        (credit,) = grpo([group_of(taken.tolist(), keep=range(sampled))])
        chance = float(np.prod(np.where(np.array(verdicts) == 1, p, 1 - p)))
        total += chance * float((credit * np.where(taken == 1, 1 - p, -p)).mean())
    limit = p * (1 - p) / (np.sqrt(p * (1 - p)) + 1e-4)
    assert round_factor(of, p, planned, of_member("grpo")(p)) == pytest.approx(total / limit, rel=1e-3)


def _seen(planned, verdicts):
    from winnow.budget.rounds import Counts

    numbers = (planned, len(verdicts), sum(verdicts), len(verdicts) - sum(verdicts))
    return Counts(
        **dict(zip(("planned", "sampled", "correct", "wrong"), (np.array([n]) for n in numbers), strict=True))
    )


def test_a_large_round_is_enumerated_by_logarithms():
    """At 1,500 rollouts the number of ways to be correct is no float."""
    assert round_factor(single, 0.25, 1_500) == pytest.approx(1_499 / 1_500, rel=1e-9)
    assert distribution(single, 1.0, 1_500)[1_500, 1_500] == 1.0
    assert CENTRED.limit(0.25) == (0.75, -0.25)
