"""The classes of wrong verdicts that released verifiers were caught with: accepted here, or refused by policy."""

from __future__ import annotations

import pytest

from winnow.rewards.math_equivalence import algebra
from winnow.rewards.math_equivalence.grader import equal

pytestmark = pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")

ONCE_LOST = [
    # constants and functions spelled without LaTeX
    ("pi/2", r"\frac{\pi}{2}"), ("-2*pi", r"-2\pi"), ("exp(16)-1", "e^{16}-1"), ("exp(16)-1", r"\exp(16)-1"),
    ("arcsin(10/13)", "np.arcsin(10/13)"), ("sin(x)", r"\sin x"), (r"e^{x^2}", r"\exp(x^2)"),
    # mixed numbers, powers of ten
    ("1 1/2", r"\frac{3}{2}"), ("3.83e35", r"3.83 \times 10^{35}"), ("2.7778 x 10^{-6}", "2.7778e-6"),
    # the imaginary unit as sympy writes it
    ("x + 1.414I", "x + 1.414i"), ("3+2I", "3 + 2i"),
    # a root of a letter that may be negative
    (r"\sqrt{1/n}", r"\frac{1}{\sqrt{n}}"),
    # the name on the left
    ("y = x^2 - 1", "f(x) = x^2 - 1"), ("f(x) = x^2 - 1", "x^2 - 1"), ("k>=2", r"k \geqslant 2"),
    # a backslash left over at the end
    ("42\\", "42"), ("\\frac{1}{2}\\ ", r"\frac12"),
    # letters that cancel
    (r"\sin^2 a + \cos^2 a", "1"),
]  # fmt: skip

# Refused although a person might accept them; each reason is the policy.
REFUSED = {
    ("(0.6,2.6667]", r"(\frac{3}{5},\frac{8}{3}]"): "rounding is not equality; `absolute_tolerance` allows it",
    ("0.333", r"\frac{1}{3}"): "rounding is not equality",
    (r"\log_{10} 2", r"\log 2"): "the base of a bare log is anybody's guess",
    (r"[2,\infty)", r"k \geqslant 2"): "a set is not a condition on a letter",
    ("r", "R"): "letters in another case are other letters",
    ("c e^{-2t}", "C e^{-2t}"): "letters in another case are other letters",
    (r"(2,\infty]", r"(2,\infty)"): "infinity is no member",
    (r"10\%", "10"): "a percent sign changes the value",
    ("north-east", "northeast"): "words are compared as they are spelled",
    ("2:30", "150"): "times and ratios are not converted",
    ("1:2", r"\frac{1}{2}"): "a ratio is not a fraction: odds of 1:2 are 1/3",
    ("2:4", "1:2"): "ratios are compared part by part, for 2:30 and 1:15 are different times",
    ("5.5 hours", r"5 \text{ hours } 30 \text{ minutes}"): "units are not converted",
    ("1 m", "100 cm"): "units are not converted",
    ("0.2", r"20\%"): "a percentage is not converted",
    (r"\frac{\pi}{2}", r"90^\circ"): "degrees are converted only inside an expression",
    ("12", "12'"): "minutes of arc are not omitted",
    ("y'", r"\frac{dy}{dx}"): "a prime may mean a derivative or another name",
    ("BA", "AB"): "capitals that are the whole answer may be a word, a segment or a product of matrices",
    ("3, 2", "m=2, n=3"): "without names, the order says which value is which",
    ("x=2, y=3", "(2,3)"): "a list is no tuple; `(x,y)=(2,3)` is",
    ("5", "x+y=5"): "a gold with letters on its left may be the equation of a line",
    ("2x=70", "70"): "an equation for one letter is not solved",
    ("5:15", r"5:15 \text{ p.m.}"): "a time without a.m. or p.m. is on the clock of 24 hours",
    ("x>1, x<3", r"x>1 \text{ or } x<3"): "a comma between conditions means and, if both can hold",
    (r"\{n : 1 < n < 4\}", "(1,4)"): "n may be an integer",
    ("A", r"\text{(A) and (B)}"): "two options are no option",
    ("C(9,2)", r"\binom{9}{2}"): "C(9,2) may be a point",
}

ONCE_PAID = [
    # letters that differ in case
    (r"v\ln\frac{m}{M}", r"v\ln\frac{M}{m}"), ("0", r"\frac{(M-m)g\sin\theta}{M+m}"), (r"r \ge 2R", r"R \ge 2r"),
    (r"r e^{-Rt}", r"R e^{-rt}"), (r"\sin(\Delta p)", r"\sin(p^2)"),
    # a base that is no base, subscripted names that computer algebra drops
    ("52_8.08", "52_8"), (r"\frac{1}{3} E_{1}+\frac{2}{3} E_{2}", r"-\frac{1}{3} E_{1}+\frac{2}{3} E_{2}"),
    (r"\frac{1}{3} E_{1}+\frac{2}{3} E_{2}", r"\frac{1}{3} E_{1}+\frac{2}{3} E_{3}"),
    # a function of a number read as a product with it
    (r"-I(0) e^{-t}", r"I(0) e^{-t}"), (r"I(1) e^{-t}", r"I(2) e^{-t}"),
    # letters in another case
    (r"\ln R", r"\ln r"), (r"\frac{t}{R C} e^{t}", r"\frac{t}{r c} e^{t}"),
    # units with another power, a union's second part
    (r"864 \mbox{ inches}^3", r"864 \mbox{ inches}^2"), (r"(-\infty, 0) \cup \{2\}", r"(-\infty, 0) \cup \{1\}"),
    # functions that differ far from where anybody looks
    (r"\sin x", r"\sin x + 10^{-20}"), (r"\lfloor\sqrt{n-1}\rfloor", r"\lfloor\sqrt{n-2}\rfloor"),
    # a fraction inside a text that is not read as a whole
    (r"8 | \frac{1}{2}", r"\frac{1}{2}"), (r"7 @ \frac{1}{2}", r"\frac{1}{2}"),
    (r"1|2|\frac{1}{2}|\frac{1}{3}", r"\frac{1}{3}"),
    (r"\frac{1}{2} \bigtriangleup 3", r"\frac{1}{2}"), (r"\{ \frac{1}{2} ] \ln 3", r"\frac{1}{2}"),
    # the whole exponent, a tiny change
    ("3.83e35", "3.83e36"), ("1.0000000000000001", "1"), (r"e^{-40}", r"e^{-41}"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "gold"), ONCE_LOST)
def test_a_right_answer_that_others_lost_is_right(answer: str, gold: str) -> None:
    assert equal(answer, gold)
    assert equal(gold, answer)


@pytest.mark.parametrize(("answer", "gold"), REFUSED)
def test_what_policy_refuses_is_refused(answer: str, gold: str) -> None:
    assert not equal(answer, gold)


@pytest.mark.parametrize(("answer", "gold"), ONCE_PAID)
def test_a_wrong_answer_that_others_paid_is_wrong(answer: str, gold: str) -> None:
    assert not equal(answer, gold)
    assert not equal(gold, answer)
