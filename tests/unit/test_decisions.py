"""Decision words, by hand: benchmarks/decisions.py."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtri, stdtrit

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from decisions import Times, decided, in_sequence, pocock_levels, word_of


def arm(*at, never=()):
    return Times(tuple(map(float, at)), tuple(place in never for place in range(len(at))))


@pytest.mark.parametrize(
    ("low", "high", "near", "word"),
    [
        (1.01, 1.5, (1.05, 1.4), "gain"),
        (0.5, 0.99, (0.6, 0.95), "loss"),
        (0.7, 1.3, (0.81, 1.24), "equal"),
        (0.7, 1.3, (0.79, 1.2), "undecided"),
        (0.7, 1.3, (0.81, 1.26), "undecided"),
        (1.001, 1.1, (1.01, 1.09), "gain"),  # not equal, although within the margin
        (1.0, 1.1, (1.01, 1.09), "equal"),  # an interval that ends at 1 does not exclude it
    ],
)
def test_the_word_of_an_interval(low, high, near, word):
    assert word_of(low, high, near) == word


@pytest.mark.parametrize(
    ("bound", "gain", "loss"),
    [("at most", "undecided", "loss"), ("at least", "gain", "undecided"), ("none", "undecided", "undecided")],
)
def test_a_bound_supports_its_own_side_alone_and_is_never_equal(bound, gain, loss):
    assert word_of(1.1, 1.5, (1.2, 1.4), bound) == gain
    assert word_of(0.5, 0.9, (0.6, 0.8), bound) == loss
    assert word_of(0.9, 1.1, (0.95, 1.05), bound) == "undecided"


@pytest.mark.parametrize(("low", "high"), [(1.1, 1.2), (0.8, 0.9)])
def test_a_contrast_that_is_not_tested_is_neither_gain_nor_loss_nor_equal(low, high):
    assert word_of(low, high, (low, high), tested=False) == "undecided"


def test_two_arms_have_the_interval_of_their_paired_differences():
    one, two = arm(10, 20, 40), arm(5, 10, 10)  # log ratios: log 2, log 2, log 4
    of = decided(one, two)
    differences = np.log([2, 2, 4])
    half = stdtrit(2, 0.975) * differences.std(ddof=1) / math.sqrt(3)
    assert of.ratio == pytest.approx(2 ** (4 / 3))
    assert (math.log(of.low), math.log(of.high)) == pytest.approx(
        (differences.mean() - half, differences.mean() + half)
    )
    near = stdtrit(2, 0.95) * differences.std(ddof=1) / math.sqrt(3)
    assert math.log(of.near_high) == pytest.approx(differences.mean() + near)
    assert (of.seeds, of.bound) == (3, "")


def test_the_spread_of_three_arms_is_the_mean_of_the_three_pairs():
    arms = [arm(10, 20, 30, 25), arm(12, 19, 36, 20), arm(9, 25, 28, 31)]
    logs = np.log([one.at for one in arms])
    variance = np.mean([(logs[a] - logs[b]).var(ddof=1) for a, b in ((0, 1), (0, 2), (1, 2))])
    of = decided(arms[0], arms[1], arms)
    half = stdtrit(6, 0.975) * math.sqrt(variance / 4)  # 2 x 3 degrees of freedom
    assert math.log(of.high) - math.log(of.ratio) == pytest.approx(half)


def test_a_seed_that_never_reaches_the_level_makes_a_bound_with_an_interval():
    one, two = arm(10, 11, 10, 11), arm(30, 31, 32, 40, never=(3,))
    assert decided(one, two).bound == "at most"
    assert decided(one, two).word == "loss"
    assert decided(two, one).bound == "at least"
    assert decided(two, one).word == "gain"
    assert decided(arm(10, 11, 10, 40, never=(3,)), two).bound == "none"
    assert decided(arm(10, 11, 10, 40, never=(3,)), two).word == "undecided"
    same = arm(10, 11, 10.1, 40, never=(3,))
    assert decided(arm(10, 11, 10, 40), same).word == "undecided"


def test_one_seed_decides_nothing():
    of = decided(arm(10), arm(1))
    assert (of.ratio, of.word) == (pytest.approx(10), "undecided")
    assert math.isnan(of.low)


def test_one_look_has_the_whole_level():
    assert pocock_levels(0.05, (1.0,)) == pytest.approx([0.05])


def test_three_looks_spend_alpha_by_pococks_function():
    information, alpha = (0.5, 0.75, 1.0), 0.05
    levels = pocock_levels(alpha, information)
    assert levels[0] == pytest.approx(alpha * math.log(1 + (math.e - 1) * 0.5))
    rng = np.random.default_rng(0)
    steps = np.sqrt(np.diff([0, *information]))
    z = np.cumsum(rng.standard_normal((200_000, 3)) * steps, axis=1) / np.sqrt(information)
    crossed = np.abs(z) > -ndtri(np.array(levels) / 2)
    spent = [alpha * math.log(1 + (math.e - 1) * share) for share in information]
    found = [crossed[:, : look + 1].any(axis=1).mean() for look in range(3)]
    assert found == pytest.approx(spent, abs=0.0025)  # five standard errors
    assert spent[-1] == pytest.approx(alpha)


BASE = np.exp(np.random.default_rng(1).normal(4, 0.02, size=16))


def arms(**factors):
    """Arms that are this many times slower than the first, with little scatter."""
    scatter = np.random.default_rng(2).normal(0, 0.02, size=(len(factors), 16))
    return {
        name: arm(*(BASE * factor * np.exp(scatter[place]))) for place, (name, factor) in enumerate(factors.items())
    }


def words(found):
    return [(decision.word, decision.seeds) for decision in found]


def test_a_sequence_goes_on_after_a_gain_or_a_loss():
    of = arms(a=1.0, b=0.5, c=2.0)
    assert words(in_sequence(of, [("a", "b"), ("a", "c"), ("c", "b")], [8, 12, 16])) == [
        ("gain", 8), ("loss", 8), ("gain", 8)]  # fmt: skip


def test_after_a_contrast_that_is_equal_no_later_one_is_a_gain_or_a_loss():
    of = arms(a=1.0, b=1.0, c=2.0, d=1.0)
    assert words(in_sequence(of, [("a", "b"), ("a", "c"), ("a", "d")], [8, 12, 16])) == [
        ("equal", 8), ("undecided", 16), ("equal", 8)]  # fmt: skip


def test_a_look_has_the_first_seeds_alone():
    of = arms(a=1.0, b=1.0)
    late = Times((*of["b"].at[:8], *(10 * t for t in of["b"].at[8:])), of["b"].never)
    assert words(in_sequence({"a": of["a"], "b": late}, [("a", "b")], [8, 12, 16])) == [("equal", 8)]
    assert words(in_sequence({"a": arm(*of["a"].at[:12]), "b": arm(*of["b"].at[:12])}, [("a", "b")], [8, 12, 16])) == [
        ("equal", 8)]  # fmt: skip


def test_fewer_seeds_than_the_first_look_are_refused():
    with pytest.raises(ValueError, match="7 seeds"):
        in_sequence({"a": arm(*range(1, 8)), "b": arm(*range(1, 8))}, [("a", "b")], [8, 12])


def test_equal_arms_are_rarely_called_different_over_looks_and_contrasts():
    rng = np.random.default_rng(3)
    alarms = 0
    for _ in range(400):
        of = {name: arm(*np.exp(rng.normal(4, 0.2, size=16))) for name in "abc"}
        found = in_sequence(of, [("a", "b"), ("c", "a"), ("c", "b")], [8, 12, 16])
        alarms += any(decision.word in ("gain", "loss") for decision in found)
    assert alarms / 400 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)
