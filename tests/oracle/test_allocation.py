"""Allocations against published vectors, exact sums and a numeric optimiser of the variance bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from winnow.budget.allocation import apportion, gvm_weights
from winnow.budget.allocators import gvm, gvm_online, uniform
from winnow.records import PromptStats

P = [0, 0.125, 0.25, 0.5, 0.75, 1]
G = [0, 2, 1.5, 1, 1, 0.5]


def stats_of(pass_rate, gradient_norm=None, trials=8.0):
    rate = np.array(pass_rate, dtype=float)
    known = ~np.isnan(rate)
    norm = np.full(len(rate), np.nan) if gradient_norm is None else np.array(gradient_norm, dtype=float)
    return PromptStats(
        ids=tuple(f"p{i}" for i in range(len(rate))),
        pass_rate=rate,
        gradient_norm=norm,
        trials=np.where(known, trials, 0.0),
        correct=np.where(known, trials * np.nan_to_num(rate), 0.0),
    )


def test_gvm_weights_of_the_published_formula():
    weights = gvm_weights(np.array(P), np.array(G), alpha=1e-3, beta=2.0)
    assert weights == pytest.approx([0, 5.4841, 2.9763, 1.4114, 1.1537, 0.4998], abs=1e-4)
    assert weights / weights.sum() * 48 == pytest.approx([0, 22.84, 12.40, 5.88, 4.80, 2.08], abs=5e-3)


def test_gvm_golden_vectors():
    assert gvm(stats_of(P, G), 48).tolist() == [0, 23, 12, 6, 5, 2]
    assert gvm(stats_of(P), 48).tolist() == [0, 16, 11, 8, 7, 6]


def test_unsolved_prompts_are_explored_where_configured():
    counts = gvm(stats_of([0.0, 0.0, 0.5, 0.5], [0, 0, 1, 1]), 32, exploration=3)
    assert counts.tolist() == [3, 3, 13, 13]


def test_a_minimum_for_those_that_get_any():
    """Shares 0.2, 0.9, 18.9: the first rounds to nothing, the second is lifted to 2."""
    counts = gvm(stats_of([0.5, 0.5, 0.5], [0.2, 0.9, 18.9]), 20, minimum=2)
    assert counts.tolist() == [0, 2, 18]


def test_a_maximum_passes_the_rest_on():
    assert gvm(stats_of([0.5] * 3, [1, 1, 10]), 24, maximum=12).tolist() == [6, 6, 12]
    assert gvm(stats_of([0.5] * 3, [1, 1, 10]), 99, maximum=12).tolist() == [12, 12, 12]


def test_filters():
    easy = gvm(stats_of([0.25, 0.9, 1.0]), 12, filter_threshold=0.95)
    assert easy[2] == 0
    assert easy.sum() == 12
    # shares 4.65 and 3.35 expect 0.47 and 3.0 correct rollouts
    assert gvm(stats_of([0.1, 0.9], [0.33, 1.0]), 8, filter_insufficient=1.0).tolist() == [0, 8]


def test_nothing_known_is_uniform():
    nan = float("nan")
    assert gvm(stats_of([nan] * 4), 10).tolist() == [3, 3, 2, 2]
    assert gvm(stats_of([0.0] * 4, [0.0] * 4), 8).tolist() == [2, 2, 2, 2]
    assert gvm_online(stats_of([nan] * 4), 8).tolist() == [2, 2, 2, 2]
    assert uniform(stats_of([nan] * 4), 10).tolist() == [3, 3, 2, 2]


def test_online_shrinks_towards_the_prior_and_explores_the_unsolved():
    """4 of 8 and 8 of 8 with a Beta(0.5, 0.5): rates 0.5 and 8.5/9; unsolved: 2."""
    counts = gvm_online(stats_of([0.5, 1.0, 0.0]), 32)
    weights = gvm_weights(np.array([0.5, 8.5 / 9]), np.full(2, np.nan), alpha=1e-3, beta=2.0)
    assert counts.tolist() == [*np.rint(30 * weights / weights.sum()).astype(int), 2]


def test_online_a_solved_prompt_without_a_norm_has_the_mean_norm():
    """Norms 1, 3 and unknown: shares 1, 3 and 2 of 24. It is not explored as one that was never solved."""
    assert gvm_online(stats_of([0.5, 0.5, 0.5], [1.0, 3.0, float("nan")]), 24).tolist() == [4, 12, 8]


CASES = pytest.mark.parametrize("cases", [500, pytest.param(10_000, marks=pytest.mark.slow)])  # the same, and more


@CASES
def test_the_sum_is_the_budget_in_random_cases(cases):
    draw = np.random.default_rng(0)
    for _ in range(cases):
        n = int(draw.integers(1, 20))
        weights = draw.exponential(size=n) * (draw.random(n) < draw.random())
        minimum, maximum = int(draw.integers(0, 4)), int(draw.choice([0, 4, 9]))
        budget = int(draw.integers(0, 120))
        counts = apportion(weights, budget, minimum=minimum, maximum=maximum)
        assert counts.sum() == min(budget, maximum * n if maximum else budget)
        assert counts.min() >= 0
        assert not maximum or counts.max() <= maximum
        low = (counts > 0) & (counts < minimum)
        assert low.sum() <= 1, (weights, budget, minimum, maximum, counts)


def test_a_floor_takes_room_that_the_others_need():
    """8 rollouts above the floors, and room for 3, 3 and 5: the first two cannot take them all. The third gets its
    minimum, and the rest of the second's room stays free.
    """
    floor = np.array([2, 2, 0])
    assert apportion(np.array([8.0, 1.0, 1.0]), 12, minimum=3, maximum=5, floor=floor).tolist() == [5, 4, 3]


@CASES
def test_one_count_at_most_is_between_its_floor_and_the_minimum(cases):
    draw = np.random.default_rng(3)
    for _ in range(cases):
        n, minimum = int(draw.integers(1, 8)), int(draw.integers(0, 5))
        maximum, budget = minimum + int(draw.integers(1, 6)), int(draw.integers(0, 60))
        floor = np.minimum(draw.integers(0, 3, size=n), maximum)
        floor[np.cumsum(floor) > min(budget, maximum * n)] = 0
        weights = draw.exponential(size=n) * 10.0 ** draw.integers(-3, 3, size=n) * (draw.random(n) < 0.7)
        counts = apportion(weights, budget, minimum=minimum, maximum=maximum, floor=floor)
        assert counts.sum() == min(budget, maximum * n)
        assert np.all((counts >= floor) & (counts <= maximum))
        assert np.count_nonzero((counts > floor) & (counts < minimum)) <= 1, (weights, budget, floor, counts)


@CASES
def test_the_bounds_hold_through_gvm_in_random_cases(cases):
    """Some prompts unsolved, some never probed, some without a norm; floors and maxima that get in each other's way."""
    draw = np.random.default_rng(2)
    for case in range(cases):
        n = int(draw.integers(1, 9))
        rates = np.where(
            draw.random(n) < 0.1, np.nan, draw.integers(0, 9, size=n) * (draw.random(n) < draw.random()) / 8
        )
        norms = draw.exponential(size=n) * (draw.random(n) < 0.9) if draw.random() < 0.5 else None
        minimum, maximum = int(draw.integers(0, 4)), int(draw.choice([0, 3, 4, 9]))
        budget, exploration = int(draw.integers(0, 80)), int(draw.integers(0, 12))
        options = {"minimum": minimum, "maximum": maximum, "exploration": exploration}
        filters = {"filter_threshold": 0.9, "filter_insufficient": 1.0} if case % 4 == 0 else {}
        planned = [gvm(stats_of(rates, norms), budget, **options, **filters)]
        planned.append(gvm_online(stats_of(rates, norms), budget, **options))
        for counts in planned:
            case = f"{rates} {norms} {budget} {options} {filters} -> {counts}"
            assert counts.min() >= 0, case
            assert counts.max() <= (maximum or budget), case
            assert counts.sum() == min(budget, maximum * n if maximum else budget), case


def test_exploration_yields_to_a_maximum_and_to_the_budget_that_it_leaves():
    assert gvm(stats_of([0, 0, 0, 0.5]), 64, maximum=4, exploration=10).tolist() == [4, 4, 4, 4]
    assert gvm(stats_of([0, 0, 0, 0.5]), 8, maximum=4, exploration=10).tolist() == [2, 2, 2, 2]
    assert gvm(stats_of([0, 0, 0.5, 0.5]), 8, maximum=3, exploration=1).tolist() == [1, 1, 3, 3]
    assert gvm(stats_of([0, 0, 0, 0.5]), 10, maximum=4, minimum=3, exploration=1).sum() == 10


@pytest.mark.parametrize("allocator", [gvm, gvm_online])
def test_bounds_that_exclude_each_other_are_refused(allocator):
    with pytest.raises(ValueError, match=r"minimum = 3.*maximum = 2"):
        allocator(stats_of([0.5, 0.5]), 8, minimum=3, maximum=2)
    assert allocator(stats_of([0.5, 0.5]), 8, minimum=3, maximum=0).tolist() == [4, 4]


def test_one_count_alone_stays_below_a_minimum_that_the_budget_does_not_allow():
    """6 rollouts, at least and at most 4 each: two prompts are needed, and the heavier one gets its minimum."""
    assert apportion(np.array([0.85, 0.72]), 6, minimum=4, maximum=4).tolist() == [4, 2]
    assert apportion(np.array([0.72, 0.85, 0.1]), 6, minimum=4, maximum=4).tolist() == [2, 4, 0]
    assert apportion(np.array([1.0, 1.0, 1.0]), 13, minimum=5, maximum=6).tolist() == [5, 5, 3]


@given(
    weights=st.lists(st.floats(0, 1e308), min_size=1, max_size=6),
    budget=st.integers(0, 40),
    minimum=st.integers(0, 6),
    above=st.integers(0, 6) | st.none(),
)
def test_bounds_and_sums_of_any_weights(weights, budget, minimum, above):
    """Without floors: the whole budget, the maximum, and one count at most between 0 and the minimum."""
    maximum = 0 if above is None else minimum + above
    counts = apportion(np.array(weights), budget, minimum=minimum, maximum=maximum)
    assert counts.sum() == min(budget, (maximum or budget) * len(weights))
    assert counts.min() >= 0
    assert counts.max() <= (maximum or budget)
    assert np.count_nonzero((counts > 0) & (counts < minimum)) <= 1


def test_heavier_prompts_get_no_less():
    draw = np.random.default_rng(1)
    for _ in range(500):
        weights = draw.exponential(size=8)
        counts = apportion(weights, int(draw.integers(0, 64)), minimum=int(draw.integers(0, 3)))
        assert np.all(np.diff(counts[np.argsort(weights)]) >= 0)


def test_a_numeric_optimiser_of_the_variance_bound_agrees():
    """Proposition 1: n_i ~ w_i minimises sum of G_i^2 / (p_i n_i) / (1 + alpha / p_i^beta) at a fixed sum of n."""
    p, g = np.array(P[1:]), np.array(G[1:])
    alpha, beta, budget = 1e-3, 2.0, 48.0
    cost = g**2 / p / (1 + alpha / p**beta)
    logits = np.zeros(len(p))
    for _ in range(20_000):  # gradient descent on the softmax parametrisation of the simplex
        n = budget * np.exp(logits) / np.exp(logits).sum()
        slope = -cost / n**2 * n
        logits -= 0.5 * (slope - n / budget * slope.sum())
    weights = gvm_weights(p, g, alpha=alpha, beta=beta)
    assert n == pytest.approx(budget * weights / weights.sum(), rel=1e-6)


def test_a_tiny_weight_does_not_hide_the_proportions_of_the_others():
    assert apportion(np.array([10.0, 1.0, 1.0, 1e-40]), 20, maximum=12).tolist() == [12, 4, 4, 0]
