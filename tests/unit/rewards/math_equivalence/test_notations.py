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
        (r"\frac{1}{2} " + _matrix("pmatrix", _SQUARE), _matrix("bmatrix", r"0.5 & 1 \\ 1.5 & 2")),
        ("-" + _matrix("pmatrix", _SQUARE), _matrix("pmatrix", r"-1 & -2 \\ -3 & -4")),
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
        (r"\text{No solution}", r"\text{no solution}"),
        ("No real roots", r"\text{no real roots}"),
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
        ("2" + _matrix("vmatrix", _SQUARE), _matrix("vmatrix", r"2 & 4 \\ 6 & 8")),
        ("2" + _matrix("pmatrix", _SQUARE), _matrix("pmatrix", _SQUARE)),
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


# (gold, answer): the syntax of sympy, binomials, and vectors in i, j, k
REWRITTEN = [
    (r"\langle 1, \frac12 \rangle", r"\langle 1, 0.5 \rangle"),
    # the syntax of sympy
    ("x**2+1", "x^2+1"), ("7*sin(pi*x/5)+1", r"7\sin\left(\frac{\pi x}{5}\right)+1"), ("oo", r"\infty"),
    ("-oo", r"-\infty"), ("V = IR", "V = I*R"), ("P = IV", "P = V*I"),
    ("(-oo, 3)", r"(-\infty, 3)"), ("x**(-1)", r"\frac{1}{x}"), ("x**-2", "x^{-2}"), ("2**(n+1)-1", "2^{n+1}-1"),
    ("sqrt(2)/2", r"\frac{\sqrt{2}}{2}"), ("2*sqrt(3)*pi", r"2\pi\sqrt{3}"), ("exp(2*x)", "e^{2x}"),
    ("3*x**2*y", "3x^2y"),
    ("(x+1)**2", "x^2+2x+1"), ("-x**3/3 + 2*x", r"2x-\frac{x^3}{3}"), ("asin(x/2)", r"\arcsin\frac{x}{2}"),
    ("2+3*I", "2+3i"), ("sqrt(x**2+1)", r"\sqrt{x^2+1}"), ("x**2*exp(-x)", "x^2e^{-x}"), ("2**sin(x)", r"2^{\sin x}"),
    ("cos(x)**2", r"\cos^2 x"), ("Rational(1, 2)", r"\frac12"), ("x**12", "x^{12}"), ("10**6", "1000000"),
    ("x**0.5", r"x^{0.5}"),
    ("pi/4", r"\frac{\pi}{4}"), ("tan(pi/8)", r"\tan\frac{\pi}{8}"), ("sqrt(2)*sin(x)", r"\sqrt2 \sin x"),
    ("x*log(x)", r"x\ln x"), ("2*log(3)", r"\ln 9"), ("3**(1/2)", r"\sqrt{3}"), ("2*x*(x - 1)", "2x^2-2x"),
    ("x^2+1", "x**2+1"),
    # binomials
    (r"C_{9}^{2}", r"\binom{9}{2}"), ("C_9^2", "36"), ("36", "C_{9}^{2}"), (r"C_{10}^{3}", r"\binom{10}{3}"),
    (r"\dbinom{9}{2}", "C_9^2"),
    (r"\mathrm{C}_{9}^{2}", "36"), (r"{}_{9}C_{2}", "36"), ("C^2_9", "36"), (r"C_{12}^{10}", "66"),
    (r"C_5^2 \cdot C_4^1", "40"),
    (r"\binom{9}{2}", r"{}^{9}C_{2}"),
    # vectors
    ("(3,4)", r"3\mathbf{i}+4\mathbf{j}"), ("(3,4,-1)", r"3\hat{i}+4\hat{j}-\hat{k}"),
    (r"3\mathbf{i}+4\mathbf{j}", "(3,4)"),
    (r"\begin{pmatrix}3\\4\end{pmatrix}", r"3\vec{i}+4\vec{j}"), ("(3,0,-1)", r"3\mathbf i - \mathbf k"),
    (r"3\mathbf{i}-\mathbf{k}", "3i-k"),
    (r"\langle 3, 4 \rangle", r"3\hat{\imath}+4\hat{\jmath}"), (r"2\hat{\mathbf{i}}+\hat{\mathbf{j}}", "(2,1)"),
    ("(2t,1,t^2)", r"2t\mathbf{i}+\mathbf{j}+t^2\mathbf{k}"),
    (r"\frac{1}{2}\mathbf{i}+\mathbf{j}", "(0.5, 1)"), ("(0,1,0)", r"\mathbf{j}"),
    (r"4\mathbf{j}+3\mathbf{i}", "(3,4)"), (r"\vec{i}-2\vec{k}", r"\mathbf{i}-2\mathbf{k}"),
    (r"2\hat{i}+3\hat{j}", r"2\hat{\imath}+3\hat{\jmath}"),
    (r"\mathbf{i}+2\mathbf{j}+3\mathbf{k}", r"\begin{bmatrix}1\\2\\3\end{bmatrix}"), ("(3,4)", "3i+4j"),
    (r"(\sqrt{2},1)", r"\sqrt{2}\,\hat{i}+\hat{j}"),
]  # fmt: skip

NOT_REWRITTEN = [
    (r"\langle 1,2,3,4 \rangle", r"\langle 1,3,2,4 \rangle"),
    ("x**2+1", "x^3+1"), ("x**2+1", "2x+1"), ("oo", r"-\infty"), ("oo", "0"),
    ("7*sin(pi*x/5)+1", r"7\sin(\frac{\pi x}{6})+1"), ("x**1/2", r"\sqrt{x}"),
    ("x**2*y", "x^{2y}"), ("2*x**3", "(2x)^3"), ("-x**2", "x^2"), ("x**y**z", "x^{yz}"), ("10**6", "106"),
    ("x**12", "2x^1"), ("V = IR", "V = I*Q"),
    ("C_{9}^{2}", r"\binom{9}{3}"), ("C_9^2", r"\binom{2}{9}"), ("C_2^9", r"\binom{9}{2}"), ("C_1^2", "0"),
    ("C_1^2", r"\binom{1}{2}"), ("C_9^2", "18"),
    ("C(9,2)", "36"), ("C_n^2", "C_n^3"), ("A_9^2", "36"), ("C_9^2", "C_9^3"),
    ("(3,4)", r"3\mathbf{i}-4\mathbf{j}"), ("(3,4)", r"4\mathbf{i}+3\mathbf{j}"),
    (r"\vec{i}-2\vec{k}", r"\mathbf{i}-2\mathbf{j}"), (r"2\hat{i}+3\hat{j}", r"2\hat{\imath}-3\hat{\jmath}"),
    ("(3,4,1)", r"3\mathbf{i}+4\mathbf{j}"), ("(3,4)", r"3\mathbf{i}+4\mathbf{j}+\mathbf{k}"),
    ("(3,4)", "3+4i"), ("[3,4]", r"3\mathbf{i}+4\mathbf{j}"),
    (r"3\mathbf{i}+4\mathbf{j}", r"4\mathbf{i}+3\mathbf{j}"), ("(3,4)", r"3\mathbf{i}+\mathbf{i}+4\mathbf{j}"),
    ("7", r"3\mathbf{i}+4\mathbf{j}"), ("3, 4", r"3\mathbf{i}+4\mathbf{j}"), ("(0,5)", "5i"),
    ("(3,4)", r"3\mathbf{i}4\mathbf{j}"), (r"\mathbf{k}", "(0,1)"),
]  # fmt: skip


def test_another_notation_of_the_gold_is_equal() -> None:
    assert [pair for pair in REWRITTEN if not equal(pair[1], pair[0])] == []


def test_a_similar_text_in_another_notation_is_different() -> None:
    assert [pair for pair in NOT_REWRITTEN if equal(pair[1], pair[0])] == []
