"""The numbers an evaluation publishes, by hand."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from winnow.algos.pass_at_k import is_tied, majority_at_k, pass_at_k, standard_error


def test_pass_at_k_is_unbiased():
    """1 of 4 correct, 2 drawn: 1 - C(3, 2) / C(4, 2) = 1/2, where 1 - (3/4)^2 would be 7/16."""
    assert pass_at_k(np.array([1, 0, 4, 3]), np.array([4, 4, 4, 4]), 2) == pytest.approx([0.5, 0.0, 1.0, 1.0])


def test_pass_at_k_is_what_all_subsets_give():
    rows = [(correct, rollouts, k) for rollouts in range(1, 8) for correct in range(rollouts + 1) for k in (1, 2, 3)]
    for correct, rollouts, k in rows:
        answers = [True] * correct + [False] * (rollouts - correct)
        subsets = [any(drawn) for drawn in combinations(answers, k)]
        expected = sum(subsets) / len(subsets) if subsets else np.nan
        assert pass_at_k(np.array([correct]), np.array([rollouts]), k) == pytest.approx([expected], nan_ok=True)


def test_fewer_rollouts_than_k_give_nan():
    assert np.isnan(pass_at_k(np.array([1]), np.array([2]), 3)).all()


@pytest.mark.parametrize(
    ("correct", "wrong", "silent", "k", "expected"),
    [
        (2, [1], 0, 3, 1.0),
        (1, [2], 0, 3, 0.0),
        (2, [2], 0, 4, 1 / 2),
        (2, [2, 2, 1], 3, 10, 1 / 3),  # three lead together
        (1, [], 7, 8, 1.0),  # silent rollouts have no vote
        (0, [], 3, 2, 0.0),  # nobody votes
        (3, [1, 1], 0, 1, 3 / 5),  # of one rollout it is its own answer
        (2, [1], 0, 2, (1 * 1 + 2 * 1 / 2) / 3),  # both correct, or one of each
        (1, [1], 1, 2, (1 / 2 + 1 + 0) / 3),  # the pairs: a tie, correct alone, wrong alone
    ],
)
def test_majority_at_k_by_hand(correct, wrong, silent, k, expected):
    assert majority_at_k(correct, wrong, silent, k) == pytest.approx(expected, abs=1e-12)


def vote(answers: tuple[str, ...]) -> Fraction:
    """Of one subset: 1/t where "right" is among the t that lead. "-" is no answer."""
    counts = Counter(answer for answer in answers if answer != "-")
    leading = [answer for answer, count in counts.items() if count == max(counts.values())]
    return Fraction("right" in leading, len(leading) or 1)


@pytest.mark.parametrize(
    ("correct", "wrong", "silent"),
    [(3, [2, 2], 2), (2, [1, 1, 1, 1, 1], 2), (4, [4], 1), (1, [3, 2, 1], 3), (5, [], 4), (3, [3, 3, 2], 0)],
)
def test_majority_at_k_is_what_all_subsets_give(correct, wrong, silent):
    answers = ["right"] * correct + [str(j) for j, count in enumerate(wrong) for _ in range(count)] + ["-"] * silent
    for k in range(1, len(answers) + 1):
        votes = [vote(subset) for subset in combinations(answers, k)]
        assert majority_at_k(correct, wrong, silent, k) == pytest.approx(float(sum(votes) / len(votes)), abs=1e-12)


def test_majority_of_1024_rollouts():
    """Half of them drawn, in proportion to no advantage: two equal classes win half of the time, whatever is drawn."""
    assert majority_at_k(512, [512], 0, 512) == pytest.approx(0.5, abs=1e-10)
    assert majority_at_k(300, [300, 200, 100], 124, 1024) == 0.5
    assert np.isnan(majority_at_k(1, [1], 1, 4))


def test_a_tie_is_one_of_the_leading_answers():
    assert is_tied(2, [2, 1])
    assert not is_tied(0, [1, 1])
    assert not is_tied(1, [2, 2])
    assert not is_tied(2, [1, 1])
    assert not is_tied(1, [])
    assert not is_tied(0, [])


def test_the_standard_error_is_that_of_a_mean():
    assert standard_error(np.array([0.0, 1.0, 1.0, 0.0])) == pytest.approx((1 / 3) ** 0.5 / 2)
    assert np.isnan(standard_error(np.array([1.0])))


@pytest.mark.parametrize(("correct", "wrong", "silent", "k"), [(2, [], 2, 3), (3, [1], 0, 3), (3, [], 1, 2)])
def test_a_majority_that_is_certain_is_1_and_not_above(correct, wrong, silent, k):
    """Rounding gave 1 + 2e-16 and 1 + 4e-16."""
    assert majority_at_k(correct, wrong, silent, k) == 1.0
