"""Rules of cuts by hand and against a simulation tick by tick, and the bias of what is left, by enumeration."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from winnow.budget.cuts import RolloutKind, SampledRound, expected, none, stragglers, token_budget, unlikely


def sampled(lengths, group=None, **more):
    groups = np.zeros(len(lengths), dtype=np.int64) if group is None else np.array(group, dtype=np.int64)
    return SampledRound(lengths=np.array(lengths, dtype=np.int64), group=groups, **more)


def ticks(lengths, ended):
    """Tokens of each rollout where all advance together until `ended(tokens, finished)` names those that are cut."""
    tokens, running = np.zeros(len(lengths), dtype=np.int64), np.array(lengths) > 0
    while running.any():
        running &= ~ended(tokens, tokens == lengths)
        tokens = tokens + running
        running &= tokens < lengths
    return tokens


@pytest.mark.parametrize("seed", range(20))
def test_a_token_budget_is_that_of_the_ticks(seed):
    rng = np.random.default_rng(seed)
    lengths, budget, spent = rng.integers(0, 12, rng.integers(1, 9)), int(rng.integers(0, 60)), int(rng.integers(0, 9))

    def ended(tokens, finished):
        running = tokens < lengths
        return np.full(len(lengths), spent + tokens.sum() + running.sum() > budget)

    found = token_budget(sampled(lengths, spent=spent), tokens=budget)
    assert found.tolist() == ticks(lengths, ended).tolist()
    assert found.sum() <= max(0, budget - spent)


@pytest.mark.parametrize("seed", range(20))
def test_stragglers_are_those_of_the_ticks(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 12))
    lengths, group, share = rng.integers(0, 6, size), rng.integers(0, 3, size), float(rng.choice([0.25, 0.5, 0.7, 1.0]))

    def ended(tokens, finished):
        done = np.array([np.sum(finished[group == g]) for g in group])
        of = np.array([np.sum(group == g) for g in group])
        return done >= np.ceil(share * of - 1e-9)

    assert stragglers(sampled(lengths, group), share=share).tolist() == ticks(lengths, ended).tolist()


def test_stragglers_by_hand():
    # of four, two are finished at tick 3; in the other group the first of one; a tie at tick 5 is whole
    assert stragglers(sampled([2, 3, 5, 9, 7], [0, 0, 0, 0, 1]), share=0.5).tolist() == [2, 3, 3, 3, 7]
    assert stragglers(sampled([5, 5, 5, 9]), share=0.5).tolist() == [5, 5, 5, 5]
    assert stragglers(sampled([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]), share=0.7).max() == 7


def test_a_rollout_is_cut_by_its_own_first_tokens():
    logprobs = [np.array([-3.0, -1.0, 0.0]), np.array([-1.0, -1.0, -9.0]), np.array([-9.0, -9.0]), np.array([])]
    found = unlikely(sampled([3, 3, 2, 0], logprobs=logprobs), after=2, least=-1.5)
    assert found.tolist() == [2, 3, 2, 0]  # mean -2; mean -1, whatever follows; finished after 2; nothing sampled


@pytest.mark.parametrize(
    "call",
    [
        lambda: token_budget(sampled([1]), tokens=-1),
        lambda: stragglers(sampled([1]), share=0.0),
        lambda: stragglers(sampled([1]), share=1.1),
        lambda: unlikely(sampled([1]), after=1),
        lambda: unlikely(sampled([1], logprobs=[np.zeros(1)]), after=0),
    ],
)
def test_arguments_that_do_not_fit(call):
    with pytest.raises(ValueError, match=r"."):
        call()


SHORT_RIGHT = (
    RolloutKind(length=1, correct=True, probability=0.5),
    RolloutKind(length=3, correct=False, probability=0.5),
)


def test_two_rollouts_enumerated_by_hand():
    """Of two rollouts the first to finish ends the other. Results: both right (1/4), one of each (1/2), both wrong
    (1/4). One of each leaves the right one, so the share of correct ones is 3/4, where the pass rate is 1/2.
    """
    found = expected(functools.partial(stragglers, share=0.5), SHORT_RIGHT, 2)
    assert found.pass_rate == pytest.approx(0.75)
    assert found.kept == pytest.approx(1 / 4 * 2 + 1 / 2 * 1 + 1 / 4 * 2)
    assert found.tokens == pytest.approx(1 / 4 * 2 + 1 / 2 * 2 + 1 / 4 * 6)
    assert found.gradient.tolist() == pytest.approx([0.0, 0.0])  # each group that is left is flat
    whole = expected(none, SHORT_RIGHT, 2)
    assert (whole.pass_rate, whole.kept, whole.tokens) == pytest.approx((0.5, 2.0, 4.0))
    assert whole.gradient.tolist() == pytest.approx([0.5, 0.5])  # (n - 1) / n


def test_the_share_is_unbiased_where_lengths_and_verdicts_are_independent():
    kinds = [
        RolloutKind(length=length, correct=correct, probability=0.5 * (0.3 if correct else 0.7))
        for length in (2, 6)
        for correct in (True, False)
    ]
    for rule in (functools.partial(stragglers, share=0.5), functools.partial(token_budget, tokens=13)):
        found = expected(rule, kinds, 4)
        assert found.kept < 4
        assert found.pass_rate == pytest.approx(0.3)
        assert found.gradient[0] > found.gradient[2]  # and yet short rollouts weigh more than long ones


def test_nothing_is_estimated_where_nothing_is_left():
    found = expected(lambda sampled: 0 * sampled.lengths, SHORT_RIGHT, 2)
    assert (found.kept, found.tokens) == (0.0, 0.0)
    assert math.isnan(found.pass_rate)
    assert found.gradient.tolist() == [0.0, 0.0]
