"""Left sides, chains of equal values, values stated twice, and nouns in brackets."""

from __future__ import annotations

import pytest

from winnow.rewards.math_equivalence import algebra
from winnow.rewards.math_equivalence.grader import equal

pytestmark = pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")

# (gold, answer)
EQUAL = [
    # names of quantities
    (r"m_{\max }=n^{2}-n-1", "n^2-n-1"), (r"f^{-1}(x) = \frac{x-3}{2}", r"\frac{x-3}{2}"),
    (r"V_{\text{cone}} = 12\pi", r"12\pi"), (r"S_{\triangle ABC} = 6", "6"),
    # a left side
    ("70", "m+n = 70"), ("70", "50+20 = 70"), ("70", "x = 70"), ("70", "xy = 70"),
    (r"\frac{1}{2}", r"\frac{a}{b} = 0.5"),
    ("70", r"2 \cdot 35 = 70"), ("10", r"\binom{5}{2} = 10"), ("120", "5! = 120"), ("70", "m+n = 50+20 = 70"),
    ("70", "x = 35+35 = 70"), ("12", r"\text{Area} = 12"), ("12", r"\text{Total cost} = \$12"), ("0.3", "P(A) = 0.3"),
    ("0.3", "P(X=2) = 0.3"), ("5050", "S_{100} = 5050"), (r"45^\circ", r"\angle ABC = 45^\circ"), ("5", "|AB| = 5"),
    ("x^2+2x+1", "(x+1)^2 = x^2+2x+1"), ("204", "m + n + p = 204"), ("-3", r"\alpha\beta = -3"),
    (r"\frac12", r"\sin 30^\circ = \frac12"),
    ("(2,3)", "P = (2,3)"), ("70", "m+n = 60+10"), ("2", r"\frac{x+y}{z} = 2"),
    # a chain of equal values, or a value stated twice
    (r"\frac{1}{2} = 0.5", "0.5"), (r"\frac{1}{2} = 0.5", r"\frac12"), (r"x = \frac{10}{2} = 5", "5"),
    ("50+20 = 70", "70"),
    (r"x = \frac{10}{2} = 5", "x = 5"), ("m+n = 50+20 = 70", "70"), (r"2^{10} = 1024", "1024"),
    (r"2^{10} = 1024", "2^{10}"),
    (r"0.5 \text{ or } \frac{1}{2}", "0.5"), (r"0.5 \text{ or } \frac{1}{2}", "1/2"),
    (r"\frac{1}{2}", r"0.5 \text{ or } \frac{1}{2}"),
    (r"S = \frac{100 \cdot 101}{2} = 5050", "5050"), (r"5050", r"S = \frac{100 \cdot 101}{2} = 5050"),
    (r"\frac{1}{4} \text{ (or } 0.25)", "0.25"), (r"f(x) = (x+1)^2 = x^2+2x+1", "f(x) = (x+1)^2"),
    (r"\angle ABC = 45^\circ", "45"), ("E = mc^2 = 9", "9"), ("E = mc^2 = 9", "E = 9"),
    # an exact value before its decimals
    (r"\frac13", r"\frac{1}{3} \approx 0.333"), (r"\frac{\sqrt3}{2}", "√3/2 ≈ 0.87"),
    (r"25\pi", r"x = 25\pi\approx78.54"),
    (r"25\pi", r"25\pi \approx 78.5 \text{ cm}^2"), (r"\frac13 \approx 0.333", "1/3"),
    (r"\sqrt{2}", r"\sqrt{2} \approx 1"), (r"\ln 2", r"\ln 2 \approx 0.693"),
    (r"e^2-\sin 1", r"e^2-\sin 1 \approx 6.5"),
    (r"25\pi \text{ cm}^2", r"25\pi \approx 78.5 \text{ cm}^2"),
    (r"25\pi \text{ cm}^2", r"25\pi \text{ cm}^2 \approx 78.5 \text{ cm}^2"),
    # a noun of the gold in brackets
    ("9 (apples)", "9"), ("9 (apples)", r"9 \text{ apples}"), ("9 (apples)", "9 (apples)"), ("2.5 (red apples)", "2.5"),
    ("9 (apples)", "x = 9"), ("9 (apples)", "9.0"), ("5 (hours)", "5"), ("5 (hours)", "5 hours"),
    ("3/4 (cups)", r"\frac{3}{4}"),
    ("9 (apples)", "4+5 = 9"),
]  # fmt: skip

DIFFERENT = [
    ("70", "2x = 70"), ("70", "50+21 = 70"), ("70", "50+20 = 71"), ("70", "m+n = 71"), ("70", "m+n = 50+21 = 70"),
    ("70", "x^2 = 70"), ("70", "x + x = 70"), ("70", "f(2) = 70"), (r"\frac{3}{5}", r"\sin A = \frac{3}{5}"),
    ("70", "70 = 71"),
    ("70", r"m+n \ne 70"), ("70", r"m+n \le 70"), ("70", r"m+n \approx 70"), ("70", "m+n = 70, p = 3"), ("70", "m+n"),
    ("x=5", "2x+3=13"), ("x=5", "2x=10"), (r"m_{\max }=n^{2}-n-1", "n^2-n"), ("a_{n+1} = 5", "5"),
    ("x+y=5", "5"), ("x+y = 5", "a+b = 5"), ("x=5", "y=5"), ("m+n=70", "70"), ("y = 2x+3", "a+b = 2x+3"),
    ("3, 2", "x+y=2, xy=3"),
    ("70", r"\text{not } x+y = 70"), ("5", "|x| = 5"), ("42", "1+1 = 42"), ("5", "2x = 10 = 5"), ("70", "=70="),
    # chains
    ("x=y=z=1", "1"), ("a=b=c", "c"), ("x = 2y = 10", "10"), ("x = 2y = 10", "5"), ("43 = 42", "42"),
    ("2x = 60+10 = 70", "70"), ("E = mc^2 = 9", "8"), ("E = mc^2 = 9", "mc^2"), ("x = yz = 9", "y = 9"),
    (r"\frac{1}{2} = 0.6", "0.6"), ("1 or 2", "1"), ("1 or 1", "1"), (r"0.5 \text{ or } \frac{1}{3}", "0.5"),
    ("0.5, 0.5", "0.5"),
    ("m+n = 50+20 = 70", "p+q = 30+40 = 70"), (r"x=1 \text{ or } x=2", "1"), (r"\frac13", r"0.333 \text{ or } \frac13"),
    # decimals after an exact value
    ("0.333", r"\frac13 \approx 0.333"), (r"\frac13", r"\frac13 \approx 0.34"), (r"\frac13", r"0.333 \approx \frac13"),
    (r"\frac13", r"\frac13 \simeq 0.34"), (r"\ln 2", r"\ln 2 \approx 0.7 \approx 1"), (r"\ln 2", r"\ln 3 \approx 0.69"),
    (r"25\pi \text{ cm}^2", r"25\pi \approx 78.5 \text{ m}^2"), ("5", r"5 \approx 6"),
    ("5", r"5 \approx 5 \text{ or } 6"),
    ("5", r"5.4 \approx 5"), ("5.4", r"5 \approx 5.4"), ("70", r"\approx 70"), ("70", r"x \approx 70"),
    (r"25\pi \text{ cm}^2", r"25\pi \text{ cm}^2 \approx 78.5 \text{ m}^2"), ("5", r"5 \approx 5 \approx 6"),
    (r"\frac13", r"\frac13 \approx"), (r"x \approx y", "x"), ("x", r"x \approx 5"),
    # nouns
    ("9 (apples)", "8"), ("9 (apples)", r"9 \text{ pears}"), ("9 (apples)", "9x"), ("5 (hours)", "5 minutes"),
    ("9 (x)", "9"),
    ("9 (x+1)", "9"), ("9 (xyz)", "9"), ("9(abc)", "9"), ("2 (3)", "2"), ("9 (apples)", "(apples)"), ("9 (ab)", "9"),
    ("9", "9 (ab)"),
]  # fmt: skip


def test_a_dressed_value_is_the_value() -> None:
    assert [pair for pair in EQUAL if not equal(pair[1], pair[0])] == []


def test_what_is_written_beside_it_is_no_dressing() -> None:
    assert [pair for pair in DIFFERENT if equal(pair[1], pair[0])] == []
