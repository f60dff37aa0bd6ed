"""Greedy counts against brute force, values against enumeration, and both against the authors' results."""

from __future__ import annotations

import itertools
from math import comb

import numpy as np
import pytest

from winnow.algos.advantage import dr_grpo, maxrl, rloo
from winnow.budget.allocation import (
    DR_GRPO,
    KNAPSACK,
    MEAN,
    RLOO,
    PromptValue,
    allocate_greedily,
    apportion,
    cures_variance,
    divide_evenly,
    gvm_weights,
    kept_variance,
)
from winnow.budget.allocators import cures, knapsack, vip_dr_grpo, vip_rloo
from winnow.budget.selection import max_variance
from winnow.records import PromptStats
from winnow.testing import group_of

VALUES = {"knapsack": KNAPSACK, "rloo": RLOO, "dr_grpo": DR_GRPO, "mean": MEAN}
EACH = pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)


def trained(rewards):
    """A group whose rollouts are all kept."""
    return group_of(rewards, keep=range(len(rewards)))


def one_by_one(value, statistics, budget, minimum, maximum):
    """Counts where each rollout goes to the largest gain; of equal gains to the smaller count, then to the first."""
    counts = np.full(len(statistics), minimum)
    while counts.sum() < min(budget, (maximum or budget) * len(counts)):
        gains = value.added(counts, statistics)
        room = [place for place in range(len(counts)) if not maximum or counts[place] < maximum]
        counts[min(room, key=lambda place: (-gains[place], counts[place], place))] += 1
    return counts


@EACH
def test_the_largest_gains_are_those_that_single_steps_take(value):
    """Pass rates of a probe of 8, so with many equal gains, and any pass rates."""
    draw = np.random.default_rng(0)
    for case in range(150):
        prompts = int(draw.integers(1, 7))
        rates = draw.integers(0, 9, size=prompts) / 8 if case % 2 else draw.random(prompts)
        minimum = value.least + int(draw.integers(0, 2))
        maximum = int(draw.choice([0, minimum, minimum + 3, minimum + 9])) if minimum else 0
        budget = minimum * prompts + int(draw.integers(1, 50))
        counts = allocate_greedily(value, rates, budget, minimum=minimum, maximum=maximum)
        assert counts.tolist() == one_by_one(value, rates, budget, minimum, maximum).tolist()


@EACH
@pytest.mark.parametrize(
    "rates", [np.linspace(0, 1, 5000), np.arange(5000) % 9 / 8, np.zeros(5000)], ids=["spread", "ninths", "none"]
)
def test_a_guess_from_a_sample_of_many_prompts_changes_no_count(monkeypatch, value, rates):
    counts = allocate_greedily(value, rates, 80_007, minimum=3, maximum=100)
    monkeypatch.setattr("winnow.budget.allocation._SAMPLE", 10**6)  # more than there are prompts: no guess
    assert counts.sum() == 80_007
    assert np.array_equal(counts, allocate_greedily(value, rates, 80_007, minimum=3, maximum=100))


@EACH
def test_no_other_counts_have_a_larger_sum_of_values(value):
    draw = np.random.default_rng(1)
    minimum = max(value.least, 1)
    for _ in range(20):
        rates, budget = draw.random(3), 3 * minimum + int(draw.integers(1, 12))
        counts = allocate_greedily(value, rates, budget, minimum=minimum)
        others = itertools.product(range(minimum, budget + 1), repeat=3)
        best = max(value.total(np.array(n), rates).sum() for n in others if sum(n) == budget)
        assert value.total(counts, rates).sum() == pytest.approx(best, rel=1e-12)


@EACH
def test_a_gain_is_the_difference_of_two_totals_and_never_rises(value):
    rates = np.array([0.0, 0.03, 0.3, 0.5, 0.9, 1.0])
    gains = [value.added(np.full(6, n), rates) for n in range(value.least, 40)]
    totals = [value.total(np.full(6, n), rates) for n in range(value.least, 41)]
    first = 1 if value is MEAN else 0  # without a rollout the variance of a mean is infinite
    assert np.diff(totals[first:], axis=0) == pytest.approx(np.array(gains[first:]), abs=1e-12)
    assert np.all(np.diff(gains, axis=0)[first:] <= 0)


def test_a_value_without_a_gain_is_subtracted():
    plain = PromptValue(total=RLOO.total, least=2)
    rates = np.array([0.1, 0.4, 0.9])
    assert (
        allocate_greedily(plain, rates, 30, minimum=2).tolist()
        == allocate_greedily(RLOO, rates, 30, minimum=2).tolist()
    )


def test_bounds_and_budgets_at_their_ends():
    rates = np.array([0.5, 0.5, 0.1])
    assert allocate_greedily(RLOO, rates, 5, minimum=2).tolist() == [2, 2, 1]  # less than 2 each: evenly
    assert allocate_greedily(RLOO, rates, 6, minimum=2).tolist() == [2, 2, 2]
    assert allocate_greedily(RLOO, rates, 99, minimum=2, maximum=4).tolist() == [4, 4, 4]
    assert allocate_greedily(RLOO, np.array([0.0, 1.0, 0.0]), 11, minimum=2).tolist() == [4, 4, 3]  # nothing is gained
    assert allocate_greedily(MEAN, np.array([0.0, 1.0, 4.0]), 6, minimum=0).tolist() == [0, 2, 4]
    assert divide_evenly(3, 5).tolist() == [2, 2, 1]


def test_with_fewer_rollouts_than_prompts_a_mean_takes_the_largest_variances():
    """A prompt without a rollout costs most where a term varies most, also if variances differ by many powers of 10."""
    variances = np.array([1.0, 0.0, 3.0, 2.0, 1e-12, 1e6])
    for budget, expected in ((1, [0, 0, 0, 0, 0, 1]), (3, [0, 0, 1, 1, 0, 1]), (5, [1, 0, 1, 1, 1, 1])):
        assert allocate_greedily(MEAN, variances, budget, minimum=0).tolist() == expected
    assert allocate_greedily(MEAN, np.array([1.0, 4.0]), 6, minimum=0).tolist() == [2, 4]


def test_a_kind_of_rollout_that_does_not_occur_has_no_norm():
    """p = 1, 0 and 1/2: (r - p) g has the variance 0, 0, and p (1 - p) g^2 for equal norms of 2."""
    unknown = cures_variance(np.array([1.0, 0.0, 0.5]), np.array([2.0, np.nan, 2.0]), np.array([np.nan, 2.0, 2.0]))
    assert unknown.tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("value", "bounds"),
    [
        (RLOO, {"minimum": 1}),
        (DR_GRPO, {"minimum": 2}),
        (RLOO, {"minimum": 4, "maximum": 3}),
        (RLOO, {"minimum": 2, "maximum": -1}),
        (PromptValue(total=lambda n, p: p * np.nan), {"minimum": 0}),
    ],
)
def test_what_has_no_best_counts_is_refused(value, bounds):
    with pytest.raises(ValueError, match=r"."):
        allocate_greedily(value, np.array([0.5, 0.2]), 20, **bounds)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("n", [3, 4, 7])
@pytest.mark.parametrize(("advantage", "value"), [(rloo, RLOO), (dr_grpo, DR_GRPO)])
def test_vip_s_variances_by_enumeration(advantage, value, n, p):
    """The mean over rollouts of A_i z_i with independent z of variance 1 and any mean: A adds up to 0, so the variance
    is the mean of the squares of A over n.
    """
    squares = [(advantage([trained([1.0] * right + [0.0] * (n - right))])[0] ** 2).sum() for right in range(n + 1)]
    chances = [comb(n, right) * p**right * (1 - p) ** (n - right) for right in range(n + 1)]
    variance = np.dot(chances, squares) / n**2
    assert -value.total(np.array([n]), np.array([p]))[0] == pytest.approx(variance)


@pytest.mark.parametrize("n", [2, 3, 6])
def test_knapsack_s_probability_of_a_gradient_by_enumeration(n):
    p = 0.3
    mixed = sum(comb(n, right) * p**right * (1 - p) ** (n - right) for right in range(1, n))
    assert KNAPSACK.total(np.array([n]), np.array([p]))[0] == pytest.approx(mixed * p * (1 - p) ** 2)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.8])
@pytest.mark.parametrize(("n", "keep"), [(4, 2), (7, 3), (4, 4), (9, 4), (8, 5)])
def test_the_variance_of_kept_rewards_by_enumeration(n, keep, p):
    """Over all numbers of right rollouts, of which max_variance selects."""
    expected = 0.0
    for right in range(n + 1):
        rewards = np.array([1.0] * right + [0.0] * (n - right))
        kept = rewards[max_variance(rewards, np.arange(n) / n, keep_per_prompt=keep)]
        expected += comb(n, right) * p**right * (1 - p) ** (n - right) * float(kept.var())
    value = kept_variance(keep)
    assert value.total(np.array([n]), np.array([p]))[0] == pytest.approx(expected)
    assert value.added(np.array([n]), np.array([p]))[0] == pytest.approx(
        (value.total(np.array([n + 1]), np.array([p])) - value.total(np.array([n]), np.array([p])))[0]
    )


@pytest.mark.parametrize("keep", [2, 3, 4, 7])
def test_the_variance_of_kept_rewards_is_concave_and_best_allocated_by_single_steps(keep):
    value, rates = kept_variance(keep), np.array([0.03, 0.2, 0.5, 0.9, 1.0])
    gains = np.array([value.added(np.full(5, n), rates) for n in range(keep, 60)])
    assert np.all(np.diff(gains, axis=0) <= 1e-15)
    counts = allocate_greedily(value, rates, 80, minimum=keep)
    assert counts.tolist() == one_by_one(value, rates, 80, keep, 0).tolist()
    with pytest.raises(ValueError, match=r"."):
        kept_variance(1)


def test_cures_s_variance_by_enumeration():
    """p = 0.2; a right rollout has the norm 2, a wrong one 4."""
    p = 0.2
    outcomes = [(p, 0.8 * 2), (1 - p, -0.2 * 4)]
    mean = sum(chance * term for chance, term in outcomes)
    variance = sum(chance * (term - mean) ** 2 for chance, term in outcomes)
    assert cures_variance(np.array([p]), np.array([2.0]), np.array([4.0])) == pytest.approx([variance])
    assert cures_variance(np.array([p]), np.ones(1), np.ones(1)) == pytest.approx([p * (1 - p)])


# Results of the authors' code (liziniu/KnapsackRL at 05eeb92, without numba and without its fallback): pass rates,
# mean count, theirs. Minimum 2, maximum 128.
AUTHORS_KNAPSACK = [
    ([0.5, 0.5, 0.5, 0.95], 3, [4, 3, 3, 2]),
    ([0.0, 0.125, 0.5, 0.875, 1.0], 8, [2, 21, 8, 7, 2]),
    ([0.1, 0.9, 0.9], 4, [8, 2, 2]),
]
FAULTY_KNAPSACK = [
    ([0.125, 0.25, 0.5, 0.75, 0.875], 8, [14, 10, 6, 7, 3]),
    ([0.125, 0.25, 0.5, 0.75, 0.875, 0.9375], 3, [3, 4, 4, 3, 2, 2]),
    ([0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 0.0625], 4, [4, 6, 5, 5, 4, 3, 2, 3]),
]


@pytest.mark.parametrize(("rates", "mean", "theirs"), AUTHORS_KNAPSACK)
def test_the_counts_of_the_authors_of_knapsack_rl(rates, mean, theirs):
    assert allocate_greedily(KNAPSACK, np.array(rates), mean * len(rates), minimum=2, maximum=128).tolist() == theirs


@pytest.mark.parametrize(("rates", "mean", "theirs"), FAULTY_KNAPSACK)
def test_the_fault_of_the_authors_of_knapsack_rl(rates, mean, theirs):
    """Their programme counts a prompt that gets its minimum alone as worth 0, so their sum of values is smaller."""
    p, budget = np.array(rates), mean * len(rates)
    ours = allocate_greedily(KNAPSACK, p, budget, minimum=2, maximum=128)
    assert sum(theirs) == ours.sum() == budget
    assert KNAPSACK.total(ours, p).sum() > KNAPSACK.total(np.array(theirs), p).sum() + 1e-4


# Real counts from the objective of VIP's authors (HieuNT91/VIP at 0c17c79, SLSQP to 1e-12): 60 rollouts, 4 to 32 each.
VIP_RATES = np.array([0.1, 0.25, 0.5, 0.75, 0.9])
AUTHORS_VIP = [
    (RLOO, 0.0, [9.393, 13.114, 14.988, 13.114, 9.393]),
    (DR_GRPO, 0.0, [8.828, 13.360, 15.623, 13.360, 8.828]),
    (RLOO, 0.0007, [14.326, 13.779, 13.372, 10.889, 7.634]),
    (DR_GRPO, 0.0004, [13.391, 14.253, 14.160, 11.174, 7.021]),
]


@pytest.mark.parametrize(("value", "gamma", "theirs"), AUTHORS_VIP)
def test_the_counts_of_the_authors_of_vip(value, gamma, theirs):
    """With their term gamma n log p, which moves rollouts to hard prompts, and without it."""

    def total(n, p):
        return value.total(n, p) - gamma * np.log(p) * n

    counts = allocate_greedily(PromptValue(total, least=value.least), VIP_RATES, 60, minimum=4, maximum=32)
    assert counts.sum() == 60
    assert np.abs(counts - theirs).max() < 1
    assert (counts[0] > counts[4] + 1) == (gamma > 0)


def test_gvm_s_shares_are_the_best_counts_but_for_rounding():
    """Huntington and Hill's rule and the largest remainders differ by at most one rollout here."""
    p, g = np.array([0.125, 0.25, 0.5, 0.75, 1]), np.array([2, 1.5, 1, 1, 0.5])
    weights = gvm_weights(p, g, alpha=1e-3, beta=2.0)
    best = allocate_greedily(MEAN, weights**2, 48, minimum=0)
    assert best.tolist() == [23, 12, 6, 5, 2]
    assert np.abs(best - apportion(weights, 48)).max() <= 1


def stats_of(correct, trials, norms=None):
    correct, trials = np.array(correct, dtype=float), np.array(trials, dtype=float)
    return PromptStats(
        ids=tuple(map(str, range(len(trials)))),
        pass_rate=np.where(trials > 0, correct / np.maximum(trials, 1), np.nan),
        gradient_norm=np.full(len(trials), np.nan) if norms is None else np.array(norms, dtype=float),
        trials=trials,
        correct=correct,
    )


def test_a_prompt_without_visits_gets_the_mean_count():
    """Mean 8; the others share 24: 2 for the two that are always solved or never, the rest for the third."""
    stats = stats_of([0, 0, 8, 4], [0, 8, 8, 8])
    assert knapsack(stats, 32, prior=0.0).tolist() == [8, 2, 2, 20]
    assert vip_rloo(stats, 32, prior=0.0).tolist() == [8, 2, 2, 20]
    assert vip_dr_grpo(stats, 32, prior=0.0).tolist() == [8, 3, 3, 18]
    assert knapsack(stats_of([0, 0], [0, 0]), 7).tolist() == [4, 3]


def test_a_maximum_that_the_known_prompts_reach_leaves_the_rest_to_the_others():
    counts = knapsack(stats_of([0, 0, 0, 4], [0, 0, 0, 8]), 15, maximum=4)
    assert counts.tolist() == [4, 4, 3, 4]
    assert knapsack(stats_of([0, 4], [0, 8]), 99, maximum=4).tolist() == [4, 4]


def test_the_prior_decides_how_many_rollouts_an_unsolved_prompt_gets():
    """Posterior means 0.5 / 9 and 4.5 / 9."""
    stats = stats_of([0, 4], [8, 8])
    expected = allocate_greedily(KNAPSACK, np.array([0.5 / 9, 0.5]), 40, minimum=2)
    assert knapsack(stats, 40).tolist() == expected.tolist()
    assert knapsack(stats, 40)[0] > 2 == knapsack(stats, 40, prior=0.0)[0]


def test_cures_weighs_the_spread_of_rewards_by_the_norms():
    """Standard deviations 2 x 1/2 and 4 x 1/2, and none where all rollouts are alike."""
    assert cures(stats_of([4, 4, 8, 0], [8] * 4, [2, 4, 9, 0]), 30).tolist() == [10, 20, 0, 0]
    assert cures(stats_of([4, 4, 8, 0], [8] * 4), 30, minimum=2).tolist() == [13, 13, 2, 2]


@pytest.mark.parametrize("allocator", [knapsack, vip_rloo, vip_dr_grpo, cures])
def test_bounds_that_exclude_each_other_are_refused(allocator):
    with pytest.raises(ValueError, match=r"minimum = 5.*maximum = 4"):
        allocator(stats_of([4, 2], [8, 8]), 32, minimum=5, maximum=4)


def test_maxrl_divides_by_the_mean():
    """One right of four: mean 1/4. In the authors' code a single right rollout has an advantage of a million."""
    assert maxrl([trained([1.0, 0.0, 0.0, 0.0])])[0].tolist() == [3.0, -1.0, -1.0, -1.0]
    assert maxrl([trained([0.0, 0.0])])[0].tolist() == [0.0, 0.0]
    assert maxrl([trained([1.0])])[0].tolist() == [0.0]
    assert maxrl([trained([-1.0, 0.0])])[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("p", [0.1, 0.6])
def test_maxrl_s_expected_gradient_by_enumeration(n, p):
    """P(correct) = sigmoid(t): the slope of log P is 1 - p for a right rollout and -p for a wrong one. pass@k has the
    slope k (1-p)^(k-1) p (1-p), so the sum of pass@k / k over k < n has (1 - p) (1 - (1-p)^(n-1)).
    """
    expected = 0.0
    for right in range(n + 1):
        (advantages,) = maxrl([trained([1.0] * right + [0.0] * (n - right))])
        slopes = np.array([1 - p] * right + [-p] * (n - right))
        expected += comb(n, right) * p**right * (1 - p) ** (n - right) * float(np.mean(advantages * slopes))
    assert expected == pytest.approx((1 - p) * (1 - (1 - p) ** (n - 1)))
