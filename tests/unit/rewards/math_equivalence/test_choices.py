"""Multiple choice: the usual spellings of one letter, and what is not one letter."""

from __future__ import annotations

import pytest

from winnow.rewards.math_equivalence import algebra
from winnow.rewards.math_equivalence.grader import equal

pytestmark = pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")

# (gold, answer)
EQUAL = [
    ("E", "E)"), ("E", "(E)"), ("E", r"\textbf{(E) } 12"), ("E", r"\text{E: a polygon}"), ("E", r"\text{Option E}"),
    ("E", "E."), ("E", "E:"), ("E", r"\mathrm{E}"), ("E", r"\textbf{(E)}"), ("E", r"\textbf{(E)}12"), ("E", "(E) 12"),
    ("E", "E) 12"), ("E", "E. 12"), ("E", r"\text{E. } \frac{1}{2}"), ("E", r"\text{(E) a polygon}"),
    ("E", r"\text{option (E)}"), ("E", r"\text{Choice E}"), ("E", r"\text{Answer: E}"),
    ("E", r"\text{The answer is E}"),
    ("E", r"\text{The correct answer is (E)}"), ("E", r"\text{Answer: (E) 12}"), ("E", r"\textbf{(E) } x+1"),
    ("E", r"\textbf{(E)}\ \frac{1}{2}"), ("E", r"\text{(E)}"), ("(E)", "E"), (r"\text{(E)}", "E) 12"),
    (r"\textbf{(E)}", r"\text{Option E}"), ("A", r"\text{A: An ellipse}"), ("A", r"A) 5 \text{ and } 6"), ("J", "J)"),
    ("C", r"\text{(C) I and II}"), ("D", r"\text{D) All of the above}"), ("B", r"(B)\ 2\sqrt{3}"),
    (r"\textbf{(C)}\ 135", "C"), (r"\textbf{(C)}\ 135", "135"), (r"\textbf{(C)}\ 135", r"\textbf{(C)}"),
    (r"\textbf{(C)}~\dfrac{2\sqrt{3}}3", r"\frac{2\sqrt{3}}{3}"),
    ("B", r"B. \frac{1}{2}"), ("D", "D. -3"), ("C", r"C) \sqrt{2}"), ("D", "D. x > 2"),
    ("B", r"\text{B: } 3:4"), ("B", r"\textbf{(B) } -2"), ("B", r"\textbf{(B)}\ {-\frac{1}{2}}"),
]  # fmt: skip

DIFFERENT = [
    ("E", "D)"), ("E", r"\textbf{(D) } 12"), ("E", r"\text{Option D}"), ("E", r"\text{D: a polygon}"), ("E", "e)"),
    ("A", r"\text{(A) and (B)}"), ("A", "(A), (B)"), ("A", "(A)(B)"), ("A", "A:B"), ("A", "A: B"),
    ("A", r"\text{A or B}"), ("B", r"C. \frac{1}{2}"),
    (r"\textbf{(C)}\ 135", "D"), (r"\textbf{(C)}\ 135", "134"), (r"\textbf{(C)}\ 135", r"\textbf{(D)}\ 135"),
    (r"\text{(A) and (B)}", "A"), ("A", r"(A) \frac{1}{2}"), ("A", "A) + 1"),
    ("A", "A, B"), ("A", "A) 3, B) 4"), ("A", r"\text{(A) or B}"), ("A", r"\text{Option A or B}"), ("A", "(A)(x+1)"),
    ("A", "(A) x"), ("A", "A x"), ("A", "A + 1"), ("A", "A) + 1"), ("A", "2A"), ("A", r"\text{(A) is wrong}"),
    ("A", r"\text{not A}"), ("A", "A 12"), ("A", "B) A"), ("A", r"\text{B: not A}"), ("A", "A: = 5"), ("A", "A5"),
    ("12", r"\textbf{(E) } 12"), ("12", "E) 12"), ("X", r"\text{Option X: } 12"), ("AB", "AB)"), ("A", "(A"),
    ("D", r"\text{None of A, B, C}"), ("E", r"\text{Every one}"), ("A", r"\text{A polygon}"),
]  # fmt: skip


def test_the_letter_in_its_usual_spellings() -> None:
    assert [pair for pair in EQUAL if not equal(pair[1], pair[0])] == []


def test_another_letter_or_more_than_one_is_wrong() -> None:
    assert [pair for pair in DIFFERENT if equal(pair[1], pair[0])] == []
