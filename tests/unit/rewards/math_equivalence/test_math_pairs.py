"""A fixed sample of the metamorphic pairs, through the grader."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from math_pairs import KINDS, LABEL_NOISE, Pair, counts, make_pairs

from winnow.rewards.math_equivalence import algebra
from winnow.rewards.math_equivalence.grader import equal

PER_KIND = 24


@pytest.fixture(scope="module")
def pairs(test_data: Path) -> list[Pair]:
    return make_pairs(test_data)


def test_every_kind_has_its_fifty(pairs: list[Pair]) -> None:
    found = counts(pairs)
    assert min(found.values()) >= 50, found
    assert len(pairs) >= 3000
    assert {pair.source for pair in pairs} == {
        "math500", "olympiad_bench", "minerva_math", "aime24", "amc23", "gsm8k_test", "gsm8k_train",
    }  # fmt: skip


def test_label_noise_is_part_of_the_set_and_has_a_reason(pairs: list[Pair]) -> None:
    assert set(LABEL_NOISE) <= {pair.key for pair in pairs}
    assert all(LABEL_NOISE.values())


@pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")
@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_each_kind_is_judged_as_labelled(pairs: list[Pair], kind: str) -> None:
    of_kind = [pair for pair in pairs if pair.kind == kind and pair.key not in LABEL_NOISE]
    sample = sorted(of_kind, key=lambda p: hashlib.sha256(repr(p.key).encode()).hexdigest())[:PER_KIND]
    wrong = [pair for pair in sample if equal(pair.answer, pair.gold) is not pair.equal]
    assert wrong == []


@pytest.mark.parametrize(
    ("kind", "gold", "made"),
    [
        ("dfrac", r"\frac{1}{2}", [r"\dfrac{1}{2}", r"\tfrac{1}{2}"]),
        ("left_right", "[0,1)", [r"\left[0,1\right)"]),
        ("point_zero", "-7", ["-7.0"]),
        ("thousands", "12345", ["12,345", "12{,}345", r"12,\!345"]),
        ("slash", r"-\frac{3}{4}", ["-3/4"]),
        ("unreduced", r"\frac{3}{4}", [r"\frac{6}{8}", r"\frac{9}{12}", r"\frac{30}{40}"]),
        ("decimal", r"\frac{3}{8}", ["0.375"]),
        ("decimal", r"\frac{1}{3}", []),
        ("decimal", "-0.25", [r"-\frac{1}{4}"]),
        ("x_equals", "x^2+1", ["y = x^2+1"]),
        ("x_equals", "(1,2)", []),
        ("plus_one", "3+4.5", ["3+5.5"]),
        ("times_ten", "0", []),
        ("one_percent", "200", ["202.00"]),
        ("sign", "-5", ["5"]),
        ("sign", "0", []),
        ("swap", "(1,2,3)", ["(3,2,1)"]),
        ("swap", "(1,1)", []),
        ("inverted", r"-\frac{3}{4}", [r"-\frac{4}{3}"]),
        ("bracket", "(1,2]", ["(1,2)", "[1,2]", "[1,2)"]),
    ],
)
def test_what_a_kind_makes_of_a_gold(kind: str, gold: str, made: list[str]) -> None:
    assert list(KINDS[kind][1](gold)) == made
