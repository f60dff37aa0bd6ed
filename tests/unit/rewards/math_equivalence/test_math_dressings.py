"""A sample of the dressed golds: units are judged as labelled."""

from __future__ import annotations

from pathlib import Path

import pytest
from math_dressings import DRESSINGS, UNITS, make_dressings
from math_pairs import read_golds

from winnow.rewards.math_equivalence import algebra
from winnow.rewards.math_equivalence.grader import equal

SEED, PER_KIND = 1, 8  # the development seed; results are reported on another one


@pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")
@pytest.mark.parametrize("kind", UNITS)
def test_a_sample_of_each_unit_is_judged_as_labelled(kind: str, test_data: Path) -> None:
    pairs = make_dressings(read_golds(test_data), SEED, per_kind=PER_KIND, kinds=[kind])
    assert len(pairs) == 2 * PER_KIND
    assert [pair.key for pair in pairs if equal(pair.answer, pair.gold) is not pair.equal] == []


def test_every_right_pair_has_a_wrong_twin_of_the_same_source() -> None:
    golds = {"12": "a", "(2,3)": "b", "x^2+3x-6": "b", "[1,5)": "c", r"\frac{3}{4}": "c"}
    pairs = make_dressings(golds, SEED)
    right, wrong = ([pair for pair in pairs if pair.equal is label] for label in (True, False))
    assert [(pair.kind, pair.source) for pair in right] == [(pair.kind, pair.source) for pair in wrong]
    assert {pair.kind for pair in pairs} == set(DRESSINGS)
    assert all(pair.answer != pair.gold for pair in pairs)
    assert not {pair.key for pair in right} & {pair.key for pair in wrong}
