"""Capitals and words that are no products, values with names, and tuples of names."""

from __future__ import annotations

import pytest

from winnow.rewards.math_equivalence import algebra
from winnow.rewards.math_equivalence.grader import equal

pytestmark = pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")

# (gold, answer)
EQUAL = [
    # products of letters
    ("V=IR", "V=RI"), ("GMm", "GmM"), ("V=IR", "IR"), ("V=IR", "RI"), ("PV=nRT", "nRT = VP"), ("xy", "yx"),
    ("2AB", "2BA"),
    (r"\frac{AB}{2}", r"\frac{BA}{2}"), ("AB+1", "1+BA"), ("A^2B", "BA^2"), ("mc^2", "c^2m"),
    # words
    ("IX", r"\text{IX}"), (r"\text{IV}", "IV"), ("AB", "A B"), ("BA", r"\mathrm{BA}"), (r"\text{no}", "no"),
    (r"\text{No}", r"\text{no}"), (r"\text{yes}", "yes"), ("AB, CD", "CD, AB"), ("x = AB", "AB"),
    # values with names
    ("m=2, n=3", "n=3, m=2"), ("m=2, n=3", "2, 3"), ("2, 3", "m=2, n=3"), ("x=2, x=3", "3, 2"), ("3, 2", "x=2, x=3"),
    ("x_1=2, x_2=3", "3, 2"), ("x_{1}=2, x_{2}=3", "x_2 = 3, x_1 = 2"), ("m=2, n=3", r"m=2 \text{ and } n=3"),
    ("a=1, b=2, c=3", "1, 2, 3"), ("m=2, n=2", "2, 2"), ("x=1 or x=2", "2, 1"), ("R=1, I=(-6,-4)", "1, (-6,-4)"),
    (r"\alpha=1, \beta=2", "1, 2"), ("2, 3", r"\lambda_1=2, \lambda_2=3"), ("2, 3", "a_1=2, a_2=3"),
    ("a_1=2, d=3", "2, 3"), ("a_{10}=55", "55"), ("a_{20}=55, d=3", "55, 3"), ("2a_1+6d", "2(a_1+3d)"),
    # parameters and arguments
    (r"x = \frac{\pi}{4}+k\pi, k \in \mathbb{Z}", r"x = \frac{\pi}{4} + n\pi \ (n \in \mathbb{Z})"),
    (r"x = \frac{\pi}{4}+k\pi, k \in \mathbb{Z}", r"\frac{\pi}{4}+k\pi"), ("f(n)=n", "f(x)=x"),
    ("f(x)=x, f(x)=2-x", "f(t)=2-t, f(t)=t"),
    # tuples of names
    ("(2,3)", "(x,y)=(2,3)"), ("(x,y)=(2,3)", "(2,3)"), ("(3,2)", "(y,x)=(2,3)"), ("(x,y)=(2,3)", "(y,x)=(3,2)"),
    (r"(2,3)", r"(x, y) = \left(2, 3\right)"), ("(1,2,3)", "(a,b,c)=(1,2,3)"), ("(1,2,3)", "(c,a,b)=(3,1,2)"),
    ("(2,3),(3,2)", "(x,y)=(2,3),(3,2)"), ("(2,3),(4,5)", r"(x,y)=(4,5) \text{ or } (x,y)=(2,3)"),
    (r"(2,3),(4,5)", r"(x,y)\in\{(2,3),(4,5)\}"), (r"\{(2,3),(4,5)\}", r"(x,y)\in\{(4,5),(2,3)\}"),
    ("x=2, y=3", "(x,y)=(2,3)"), ("(x,y)=(2,3)", "y=3, x=2"), (r"(3,\frac{\pi}{2})", r"(r,\theta)=(3,\pi/2)"),
    ("(x_1,x_2)=(1,2)", "(1,2)"),
]  # fmt: skip

DIFFERENT = [
    ("IX", "XI"), (r"\text{IV}", r"\text{VI}"), ("BA", "AB"), ("AB", "BA"), ("ABC", "CAB"), (r"\text{no}", "on"),
    ("on", r"\text{no}"), (r"\text{ab}", "ba"), ("AB, CD", "BA, DC"), ("(AB, CD)", "(BA, CD)"), ("IX", "x = XI"),
    ("XL", "LX"), ("CD", "DC"), (r"\mathrm{XI}", r"\mathrm{IX}"), ("V=IR", "V=IQ"), ("V=IR", "I=VR"), ("GMm", "GMM"),
    ("m=2, n=3", "3, 2"), ("3, 2", "m=2, n=3"), ("m=2, n=3", "m=3, n=2"), ("m=2, n=3", "n=2, m=3"),
    ("m=2, n=3", "x=2, y=3"),
    ("a=1, b=2, c=3", "1, 3, 2"), ("m=2, n=3", r"\{3, 2\}"), ("m=2, n=3", r"3 \text{ and } 2"),
    ("x=2, x=3", "y=2, y=3"),
    ("(2,3)", "(x,y)=(3,2)"), ("(2,3)", "(y,x)=(2,3)"), ("(x,y)=(2,3)", "(a,b)=(2,3)"), ("(2,3)", "(x,x)=(2,3)"),
    ("(2,3)", "(x,y)=(2,3,4)"), ("(2,3)", "(x,y,z)=(2,3)"), ("[2,3]", "(x,y)=(2,3)"), (r"\{2,3\}", "(x,y)=(2,3)"),
    ("(2,3),(4,5)", "(x,y)=(2,3)"), ("(x,y)=(2,3)", "x=3, y=2"), ("(2,3)", "(x,y)=[2,3]"),
    (r"k\pi, k \in \mathbb{Z}", r"2k\pi, k \in \mathbb{Z}"), (r"x > 2, x \in \mathbb{Z}", "x > 2"),
    ("f(x)=x", "f(n)=2n"),
    (r"\text{x is greater than y}", r"\text{y is greater than x}"), (r"\text{A beats B}", r"\text{B beats A}"),
    ("a_1=2, d=3", "3, 2"), ("A3_{16}", "A3_{12}"), ("A3_{16}", "A3"),
    ("x=5", "y=5"), (r"\angle ABC = 45", r"\angle DEF = 45"),
]  # fmt: skip


def test_the_same_names_and_values() -> None:
    assert [pair for pair in EQUAL if not equal(pair[1], pair[0])] == []


def test_other_words_names_or_orders() -> None:
    assert [pair for pair in DIFFERENT if equal(pair[1], pair[0])] == []
