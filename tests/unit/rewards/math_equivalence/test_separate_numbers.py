"""Numbers that are side by side stay separate, in both graders; what only looks like it stays one number."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

from winnow.rewards.answers import close
from winnow.rewards.math_equivalence import algebra, grader, strict

Grader = Callable[[str, str], bool]

pytestmark = pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")

SEPARATE = [
    (r"5 \text{ hours } 30 \text{ minutes}", "530"), (r"1 \text{ hour } 5 \text{ minutes}", "15"),
    (r"5 \text{ hours and } 30 \text{ minutes}", "530"), (r"3 \text{ m } 20 \text{ cm}", "320"),
    ("7 8", "78"), ("7 8", "56"), ("-5 -3", "-8"), ("x = -5 -3", "x = -8"), ("5'3", "53"), ('5"3', "53"),
    (r"5^{\prime} 3", "53"), ("1,2 3", "1,23"), ("1,2 3", "1,2,3"), ("5 .4", "5.4"), (r"5\,3", "53"), (r"5\ 3", "53"),
    ("5~3", "53"), ("$5$$3$", "53"), (r"\$3 \$6", "36"), (r"\$3 6", "36"), ("5 % 3", "53"), (r"10^{\circ}30'", "1030"),
    (r"14^\circ 5", "145"), (r"90^\circ 60'", "90,60"), (r"5 \text{ hours}, 30 \text{ minutes}", "5, 30"),
    ("12 34", "1234"), ("1234 567", "1234567"), ("12 345 67", "1234567"), ("0 123", "123"), ("1,234 567", "1234567"),
    ("20 000/3", "20"), (r"13 7\frac{1}{2}", r"137\frac{1}{2}"), (r"\frac{3}{5 6}", r"\frac{3}{56}"),
    ("x^{2}3", "x^{23}"), (r"\log_{32} 7", r"\log_{3} 27"), ("3.83e3 5", "3.83e35"),
    ("5 2_8", "52_8"), ("2020-05-12", "2003"), ("I=(-6,400)", "I=-6400"), ("1{,}3", "1,3"), ("1:2", r"\frac{1}{2}"),
    ("2:30", "230"), ("2:30", "1:15"), (r"0.33\ldots", "0.33"), ("(7 8)", "78"), ("5 million 300", "5000300"),
]  # fmt: skip

ONE_NUMBER = [
    ("12 345", "12345"), ("1 000 000", "1000000"), (r"5\,000", "5000"), ("10 080 cm", "10080"), ("1 234.5", "1234.5"),
    (r"3 \frac{1}{2}", "3.5"), ("2 3/4", "2.75"), ("5 3/4", r"5\frac{3}{4}"), ("5{,}4", "5.4"),
    ("1{,}234{,}567", "1234567"),
    ("2,400, 1,350", "2400, 1350"), ("5 cm, 3 cm", "5,3"), ("02:30", "2:30"), ("3 : 4", "3:4"), ("52 _8", "52_8"),
    (r"5 \text{ hours } 30 \text{ minutes}", r"5\text{ hr and }30\text{ min}"), ("7 8", "7  8"), ("-50", "- 50"),
]  # fmt: skip


@pytest.mark.parametrize("equal", [grader.equal, strict.equal], ids=["math", "strict"])
def test_separate_numbers_are_not_joined(equal: Grader) -> None:
    assert [(a, b) for a, b in SEPARATE if equal(a, b) or equal(b, a)] == []


def test_a_difference_with_e_is_no_power_of_ten() -> None:
    assert not grader.equal("1e - 5", "1e-5")


def test_a_tolerance_joins_no_numbers() -> None:
    assert [(a, b) for a, b in SEPARATE if close(a, b, Fraction(1, 1000))] == []


def test_one_number_in_several_groups_is_one_number() -> None:
    assert [(a, b) for a, b in ONE_NUMBER if not (grader.equal(a, b) and grader.equal(b, a))] == []


@pytest.mark.parametrize(
    ("answer", "gold"), [("6 -5i", "6-5i"), ("p -q", "p-q"), (r"2x -3", "2x-3"), ("A e^{2}", "Ae^2")]
)
def test_a_blank_before_a_sign_does_not_split_a_sum(answer: str, gold: str) -> None:
    assert grader.equal(answer, gold)
    assert strict.equal(answer, gold)
