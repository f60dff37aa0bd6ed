"""A sample of the edited golds, and every pair that was labelled by hand."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from math_edits import EDITS, make_edits
from math_pairs import read_golds, read_labels

from winnow.rewards.math_equivalence import algebra, strict
from winnow.rewards.math_equivalence.grader import equal

SEED, PER_KIND = 26, 12  # the development seed; results are reported on another one

# Right answers that the grader refuses, and why: each is a decision, and none makes a wrong answer right.
REFUSED = {
    (r"50\%", r"\frac{1}{2}"): "a percent sign is not added",
    ("0.625", "62.5%"): "a percentage is not converted",
    (r"3234800 \text{ cents}", r"\$32,\!348"): "units are not converted",
    (r"18 \text{ dollars and } 90 \text{ cents}", r"\$18.90"): "units are not converted",
    (r"\$0.054", r"5.4 \text{ cents}"): "units are not converted",
    (r"6 \text{ ft}^2", r"864 \mbox{ inches}^2"): "units are not converted",
    (r"\frac{\pi}{2}", r"90^\circ"): "units are not converted",
    ("144^\\circ 60'", r"145^\circ"): "units are not converted",
    ("18^\\circ 48'", r"18.8^{\circ}"): "units are not converted",
    (r"5.5 \text{ hours}", r"5 \text{ hours } 30 \text{ minutes}"): "units are not converted",
    ("6:8", "3:4"): "ratios are compared part by part, for 2:30 and 1:15 are different times",
    ("0.000 01", "1e-5"): "groups of three after a point are not joined, for a list looks the same",
    (r"52_{\text{eight}}", "52_8"): "a base is a number",
    (r"\text{an ellipse}", r"\text{ellipse}"): "prose",
    (r"3 < x \le 4", "(3,4]"): "a condition is no set",
    (r"-2 \le x \le 7", r"x \in [-2,7]"): "a condition is no set",
}

needs_algebra = pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")


def test_the_labels_are_of_both_kinds_and_of_real_golds(test_data: Path) -> None:
    labels = read_labels()
    assert len(labels) == len({(pair.answer, pair.gold) for pair in labels}) >= 300
    assert 0.4 <= sum(pair.equal for pair in labels) / len(labels) <= 0.6
    in_no_file = {"time", "date", "ratio", "empty set"}
    golds = read_golds(test_data)
    assert [pair.gold for pair in labels if pair.kind not in in_no_file and pair.gold not in golds] == []


@needs_algebra
def test_no_wrong_answer_of_the_labelled_pairs_is_right() -> None:
    wrong = [pair for pair in read_labels() if not pair.equal]
    assert len(wrong) >= 150
    assert [pair.key for pair in wrong if equal(pair.answer, pair.gold)] == []


def test_the_strict_grader_accepts_wrong_labels_only_for_missing_units() -> None:
    accepted = {pair.kind for pair in read_labels() if not pair.equal and strict.equal(pair.answer, pair.gold)}
    assert accepted == {"money", "units", "degrees"}


@needs_algebra
def test_right_labelled_answers_are_right_unless_a_decision_refuses_them() -> None:
    refused = {(pair.answer, pair.gold) for pair in read_labels() if pair.equal and not equal(pair.answer, pair.gold)}
    assert refused == set(REFUSED)


@needs_algebra
@pytest.mark.parametrize("kind", EDITS)
def test_a_sample_of_each_edit_is_judged_as_labelled(kind: str, test_data: Path) -> None:
    golds = {gold: source for gold, source in read_golds(test_data).items() if source != "gsm8k_train"}
    pairs = [pair for pair in make_edits(golds, SEED, per_kind=PER_KIND, kinds=[kind])]
    assert pairs
    assert [pair.key for pair in pairs if equal(pair.answer, pair.gold) is not pair.equal] == []


def test_edits_depend_on_the_seed_alone_and_change_every_gold() -> None:
    golds = {"10080": "a", "3, 5, 7": "b", r"\frac{14}{3}": "b", "(6,31,-1)": "b", "x^3+3x-6": "c", r"62.5\%": "c"}
    first, again, other = (make_edits(golds, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert all(pair.answer != pair.gold for pair in first)
    assert set(Counter(pair.gold for pair in first)) == set(golds)
    joined = [pair for pair in first if pair.kind == "blank_in_number"]
    assert all(not re.fullmatch(r"\d{1,3}(?:\W+\d{3})+", pair.answer) for pair in joined)
