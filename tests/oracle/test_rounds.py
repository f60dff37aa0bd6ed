"""Rules of rounds by hand, and the bias of what is estimated from their results, by enumeration."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from winnow.budget.rounds import Counts, balanced, distribution, pilot_commit, positive, screening, single


def seen(planned, sampled, correct, wrong=None):
    arrays = [np.array(values, dtype=np.int64) for values in (planned, sampled, correct)]
    left = arrays[1] - arrays[2] if wrong is None else np.array(wrong, dtype=np.int64)
    return Counts(planned=arrays[0], sampled=arrays[1], correct=arrays[2], wrong=left)


def test_a_single_round_samples_what_is_planned():
    assert single(seen([8, 3, 0], [0, 0, 0], [0, 0, 0])).tolist() == [8, 3, 0]
    assert single(seen([8, 3, 0], [8, 3, 0], [1, 2, 0])).tolist() == [0, 0, 0]


def test_balanced_ends_a_prompt_with_enough_of_both_kinds():
    rule = functools.partial(balanced, right=2, wrong=2, per_round=4)
    assert rule(seen([16, 16, 16], [0, 0, 0], [0, 0, 0])).tolist() == [4, 4, 4]
    # enough of both; no wrong one yet; two of three rollouts that are left of the plan
    assert rule(seen([16, 16, 7], [4, 4, 4], [2, 4, 0])).tolist() == [0, 4, 3]


def test_positive_ends_a_prompt_with_a_correct_rollout():
    rule = functools.partial(positive, right=1, per_round=2)
    assert rule(seen([8, 8, 2], [2, 2, 2], [1, 0, 0])).tolist() == [0, 2, 0]


def test_a_failed_verdict_is_neither_correct_nor_wrong():
    assert balanced(seen([8], [4], [2], wrong=[1]), right=2, wrong=2, per_round=4).tolist() == [4]
    assert pilot_commit(seen([8], [4], [0], wrong=[0]), pilot=4).tolist() == [4]


def test_pilot_commit_continues_prompts_within_its_bounds():
    rule = functools.partial(pilot_commit, pilot=4, low=0.25, high=0.75)
    assert rule(seen([16, 16, 2], [0, 0, 0], [0, 0, 0])).tolist() == [4, 4, 2]
    assert rule(seen([16] * 5, [4] * 5, [0, 1, 2, 3, 4])).tolist() == [0, 12, 12, 12, 0]
    assert rule(seen([16], [16], [8])).tolist() == [0]


def test_screening_continues_prompts_with_both_kinds():
    assert screening(seen([16] * 3, [8] * 3, [0, 1, 8]), pilot=8).tolist() == [0, 8, 0]


def mean_rate(rule, pass_rate, planned):
    return sum(p * correct / n for (n, correct), p in distribution(rule, pass_rate, planned).items())


def test_the_share_of_correct_rollouts_is_unbiased_in_a_single_round():
    for pass_rate in (0.0, 0.1, 0.5, 1.0):
        assert mean_rate(single, pass_rate, 6) == pytest.approx(pass_rate, abs=1e-12)


def test_a_prompt_that_ends_at_its_first_success_overstates_its_pass_rate():
    """One rollout at a time, at most two: p + (1 - p) p / 2."""
    for pass_rate in (0.1, 0.5, 0.9):
        expected = pass_rate + (1 - pass_rate) * pass_rate / 2
        assert mean_rate(functools.partial(positive, per_round=1), pass_rate, 2) == pytest.approx(expected, abs=1e-12)


def test_a_balanced_rule_is_unbiased_at_one_half_only():
    rule = functools.partial(balanced, right=1, wrong=1, per_round=2)
    assert mean_rate(rule, 0.5, 4) == pytest.approx(0.5, abs=1e-12)
    # A mixed pair ends; after a pair of correct ones the mean is (1 + p) / 2, after a pair of wrong ones p / 2
    p, q = 0.2, 0.8
    assert mean_rate(rule, p, 4) == pytest.approx(p * q + p * p * (1 + p) / 2 + q * q * p / 2, abs=1e-12)


@pytest.mark.parametrize("rule", [single, balanced, positive, pilot_commit, screening])
def test_probabilities_add_up_and_no_plan_is_exceeded(rule):
    ends = distribution(rule, 0.3, 20)
    assert sum(ends.values()) == pytest.approx(1.0, abs=1e-12)
    assert max(n for n, _ in ends) == 20
