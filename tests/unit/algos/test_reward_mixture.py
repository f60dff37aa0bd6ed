"""Mixtures of reward distributions, fitted to counts."""

import numpy as np
import pytest

from winnow.algos.reward_mixture import MOST_LEVELS, atoms_of, base_of, levels_of, pass_rates

TWO = np.array([0.0, 1.0])


def counts_of(right, n):
    return np.stack([n - np.array(right), np.array(right)], axis=1)


def test_two_rates_by_hand():
    """Half of the prompts are always solved, the others with 1/2: E p = 3/4, E p (1 - p) = 1/8."""
    mixture = pass_rates([1.0, 0.5], [1, 1])
    assert (mixture.mean, mixture.variance) == pytest.approx((0.75, 0.125))
    assert mixture.flat_share(3) == pytest.approx(0.5 + 0.5 * 0.25)
    assert (mixture.share(0.95, 1.0), mixture.share(0.0, 0.6)) == (0.5, 0.5)


def test_a_tilt_changes_the_log_odds_of_two_levels_by_theta():
    atoms = atoms_of(TWO)
    tilted = atoms.probabilities[:-2]
    thetas = np.log(tilted[:, 1] / tilted[:, 0])
    assert np.diff(thetas) == pytest.approx(np.full(len(thetas) - 1, 0.25))
    assert atoms.probabilities[-2:].tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_a_tilt_of_three_levels_is_exponential_in_their_values():
    """Values 0, 1, 4 are 0, 1/4, 1 of the range: the log-odds of neighbours rise by a quarter and three of theta."""
    atoms = atoms_of(np.array([0.0, 1.0, 4.0]), np.array([0.5, 0.3, 0.2]))
    logs = np.log(atoms.probabilities[:-3])
    low, high = np.diff(logs[:, 1] - logs[:, 0]), np.diff(logs[:, 2] - logs[:, 1])
    assert low == pytest.approx(np.full(len(low), 0.25 * 0.25))
    assert high == pytest.approx(np.full(len(high), 0.25 * 0.75))
    assert atoms.probabilities.sum(axis=1) == pytest.approx(np.ones(len(atoms.probabilities)))


def test_a_known_mixture_is_given_back():
    """A quarter is never solved, a tenth always, the rest with 0.3 or 0.7. A mean alone could not show it."""
    rng = np.random.default_rng(0)
    rates = rng.choice([0.0, 0.3, 0.7, 1.0], size=4000, p=[0.25, 0.4, 0.25, 0.1])
    mixture = atoms_of(TWO).fit(counts_of(rng.binomial(16, rates), 16), np.ones(4000))
    assert mixture.mean == pytest.approx(rates.mean(), abs=0.01)
    assert mixture.variance == pytest.approx((rates * (1 - rates)).mean(), abs=0.005)
    assert mixture.share(0.0, 0.02) == pytest.approx(0.25, abs=0.03)
    assert mixture.share(0.98, 1.0) == pytest.approx(0.10, abs=0.03)
    for n in (2, 4, 8, 64):
        assert mixture.flat_share(n) == pytest.approx((rates**n + (1 - rates) ** n).mean(), abs=0.02)


def test_no_other_weights_are_more_likely():
    counts = counts_of([0, 0, 1, 3, 4, 4], 4)
    atoms = atoms_of(TWO)
    found = atoms.fit(counts, np.ones(6))

    def likelihood(weights):
        each = np.prod(atoms.probabilities[None] ** counts[:, None], axis=2)
        return float(np.log(each @ weights).sum())

    best = likelihood(found.weights)
    for bell in atoms.bells:  # the likelihood is concave: no small step towards any part raises it
        assert likelihood(0.99 * found.weights + 0.01 * bell) <= best + 1e-3


def test_a_group_that_counts_twice_is_two_groups():
    atoms = atoms_of(TWO)
    once = atoms.fit(counts_of([1, 5, 5], 8), np.ones(3))
    twice = atoms.fit(counts_of([1, 5], 8), np.array([1.0, 2.0]))
    assert once.weights == pytest.approx(twice.weights)
    near = atoms.fit(counts_of([1, 5], 8), np.array([1.0, 2.0]), near=once)
    assert near.mean == pytest.approx(once.mean, abs=1e-3)


def test_groups_without_rollouts_do_not_count():
    atoms = atoms_of(TWO)
    assert atoms.fit(counts_of([2, 0], np.array([4, 0])), np.ones(2)).mean == pytest.approx(0.5, abs=0.01)
    with pytest.raises(ValueError, match="group"):
        atoms.fit(np.zeros((2, 2), dtype=np.int64), np.ones(2))


def test_levels_are_the_distinct_rewards():
    rewards, sizes = np.array([0.0, 0.5, 2.0, 2.0, 2.0, 0.0]), np.array([3, 3])
    levels = levels_of(rewards)
    assert (levels.values.tolist(), levels.borders.tolist(), levels.seen) == ([0.0, 0.5, 2.0], [0.25, 1.25], 3)
    assert levels.explained(rewards, sizes) == pytest.approx(1.0)
    assert levels.counts(np.array([2.0, 0.5, 2.0, 0.0]), np.array([3, 1])).tolist() == [[0, 1, 2], [1, 0, 0]]


def test_rewards_that_differ_by_rounding_alone_have_one_level():
    levels = levels_of(np.array([0.3, 0.1 + 0.2, 0.3, 1.0]))
    assert levels.values == pytest.approx([0.3, 1.0])
    assert levels.counts(np.array([0.1 + 0.2, 0.3, 1.0]), np.array([3])).tolist() == [[2, 1]]


def test_many_rewards_become_bins_whose_means_keep_their_variance():
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=400)
    levels = levels_of(rewards)
    assert len(levels.values) == MOST_LEVELS
    assert levels.seen == 400
    place = np.searchsorted(levels.borders, rewards)
    assert levels.values == pytest.approx([rewards[place == level].mean() for level in range(MOST_LEVELS)])
    assert 0.85 < levels.explained(rewards, np.full(50, 8)) < 0.99


@pytest.mark.parametrize("rewards", [[1.0, 1.0], [0.1 * 3], [0.1 * 3, 0.3]])
def test_equal_rewards_have_no_levels(rewards):
    with pytest.raises(ValueError, match="equal"):
        levels_of(np.array(rewards))


def test_a_base_has_half_a_rollout_of_each_level():
    assert base_of(np.array([[1, 0], [2, 0]])) == pytest.approx([3.5 / 4, 0.5 / 4])
