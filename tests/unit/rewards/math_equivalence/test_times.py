"""Times of day with and without a.m. or p.m."""

from __future__ import annotations

import pytest

from winnow.rewards.math_equivalence import algebra
from winnow.rewards.math_equivalence.grader import equal

pytestmark = pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")

# (gold, answer)
EQUAL = [
    ("17:15", r"5:15 \text{ p.m.}"), (r"5:15 \text{ p.m.}", "17:15"), ("17:15", "5:15 PM"),
    ("17:15", r"5:15\,\text{pm}"),
    (r"5:15 \text{ p.m.}", r"5:15 \text{ PM}"), ("5:15 P.M.", "05:15 pm"), ("5:15", r"5:15 \text{ a.m.}"),
    ("05:15", "5:15 am"), ("00:30", "12:30 a.m."), ("12:30", "12:30 p.m."), ("12:00", r"12 \text{ p.m.}"),
    ("17:00", "5 p.m."), (r"5 \text{ p.m.}", "5:00 PM"), ("17:15:30", "5:15:30 p.m."), ("23:59", "11:59 p.m."),
    ("5:15 p.m.", "5.15 p.m."), ("9:05 a.m.", "9:05"),
]  # fmt: skip

DIFFERENT = [
    ("17:15", "5:15"), (r"5:15 \text{ p.m.}", "5:15"), ("5:15", r"5:15 \text{ p.m.}"), ("17:15", r"5:15 \text{ a.m.}"),
    ("17:15", r"5:16 \text{ p.m.}"), ("5:15 a.m.", "5:15 p.m."), ("12:30 a.m.", "12:30"), ("17:15", "17:15 p.m."),
    ("5 p.m.", "5"), ("5", "5 p.m."), ("17", "5 p.m."), ("17.15", "5:15 p.m."), ("5", "5 a.m."), ("12", "12 p.m."),
    ("13:15", "1:15"), ("25:00", "1:00 a.m."), ("2:30", "1:15"), ("5:15 p.m.", r"\text{afternoon}"), ("p", "p.m."),
]  # fmt: skip


def test_one_time_in_both_clocks() -> None:
    assert [pair for pair in EQUAL if not equal(pair[1], pair[0])] == []


def test_another_half_of_the_day_is_another_time() -> None:
    assert [pair for pair in DIFFERENT if equal(pair[1], pair[0])] == []
