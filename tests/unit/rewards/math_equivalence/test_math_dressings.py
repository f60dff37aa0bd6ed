"""A sample of the dressed golds: units are judged as labelled; the whole set is in benchmarks/."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from winnow.rewards.math_equivalence import algebra
from winnow.rewards.math_equivalence.grader import equal

sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks"))
from math_dressings import DRESSINGS, UNITS, make_dressings
from math_judge import judged
from math_pairs import Pair, read_golds

SEED, PER_KIND = 1, 8  # the development seed; results are reported on another one
ROOT = Path(__file__).parents[4]


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


@pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")
def test_a_tree_judges_pairs_in_a_process_of_its_own() -> None:
    pairs = [Pair("cm", True, "12 cm", "12", "a"), Pair("cm", False, "12 cm", "13", "a")]
    found = judged(ROOT, pairs)
    assert [verdict for verdict, _ in found] == [True, False]
    assert all(0 < seconds < 60 for _, seconds in found)
