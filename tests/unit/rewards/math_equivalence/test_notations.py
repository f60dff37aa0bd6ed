"""Notations of one meaning that are compared before anything refuses their words, and what they must not open."""

from __future__ import annotations

import pytest

from winnow.rewards.math_equivalence import algebra
from winnow.rewards.math_equivalence.grader import equal

pytestmark = pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")

_COLUMN, _SQUARE = r"1/2 \\ 3", r"1 & 2 \\ 3 & 4"


def _matrix(kind: str, rows: str) -> str:
    return rf"\begin{{{kind}}} {rows} \end{{{kind}}}"


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (_matrix("bmatrix", r"\frac12 \\ 3"), _matrix("pmatrix", _COLUMN)),
        (_matrix("Bmatrix", _SQUARE), _matrix("pmatrix", _SQUARE)),
        (_matrix("vmatrix", _SQUARE), _matrix("vmatrix", r"1 & 2 \\ 3 & \frac82")),
        (r"\left[\begin{array}{cc} 1 & 2 \\ 3 & 4 \end{array}\right]", _matrix("pmatrix", _SQUARE)),
        ("7 and 8", "7, 8"),
        (r"7\text{ and }8", "8, 7"),
        ("3, 5, and 7", "3,5,7"),
        ("x = 7 or x = 8", "7 and 8"),
        (r"\text{Evelyn and Navin}", r"\text{Navin}, \text{Evelyn}"),
        ("3; 5; 7", "3,5,7"),
        (r"\{7, 8\}", "8, 7"),
        (r"1 \mp \sqrt{2}", r"1 \pm \sqrt{2}"),
        (r"\emptyset", r"\varnothing"),
        ("∅", r"\{ \}"),
        (r"0.\overline{3}", r"\frac{1}{3}"),
        (r"0.1\bar{6}", "1/6"),
        (r"-2.\overline{45}", r"-\frac{27}{11}"),
        (r"\text{East}", r"\text{east}"),
        (r"864 \text{ in}^2", r"864 \mbox{ inches}^2"),
        (r"204_{\text{base } 5}", "204_5"),
        ("(52)_8", "52_8"),
    ],
)
def test_equal_in_both_directions(answer: str, gold: str) -> None:
    assert equal(answer, gold)
    assert equal(gold, answer)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (_matrix("vmatrix", _SQUARE), _matrix("pmatrix", _SQUARE)),
        (_matrix("vmatrix", _SQUARE), _matrix("Vmatrix", _SQUARE)),
        (_matrix("bmatrix", r"1 & 3 \\ 2 & 4"), _matrix("pmatrix", _SQUARE)),
        (_matrix("bmatrix", r"1 2 \\ 3 4"), _matrix("pmatrix", r"12 \\ 34")),
        (r"\begin{array}{cc} 1 & 2 \\ 3 & 4 \end{array}", _matrix("vmatrix", _SQUARE)),
        ("7 and 8", "78"),
        ("7 and 8", "(7, 8)"),
        (r"\{7, 8\}", "(7, 8)"),
        (r"\{7\}", "7"),
        (r"\{1\} \cup \{2\}", "1, 2"),
        (r"\text{A or Bob}", r"\text{A and Bob}"),
        (r"\{\emptyset\}", r"\emptyset"),
        (r"\emptyset", "0"),
        (r"0.\overline{3}", "0.3"),
        (r"0.\overline{3}", "0.33"),
        (r"0.\overline{03}", r"\frac{1}{3}"),
        (r"0.\overline{3}5", "0.35"),
        (r"\overline{33}", "33"),
        ("f(n)=1, g(n)=n", "f(n)=n, g(n)=1"),
        ("MR", "mR"),
        ("5 in 6", "5"),
    ],
)
def test_different_in_both_directions(answer: str, gold: str) -> None:
    assert not equal(answer, gold)
    assert not equal(gold, answer)
