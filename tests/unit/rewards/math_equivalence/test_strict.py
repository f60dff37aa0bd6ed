"""The truth table of the strict grader (and so of r1_zero's rule 5)."""

from __future__ import annotations

from winnow.rewards.math_equivalence.strict import equal

EQUAL = [
    # the same text
    ("42", "42"), ("x", "x"), (r"\text{Evelyn}", r"\text{Evelyn}"), (r"1 \pm \sqrt{19}", r"1\pm\sqrt{19}"),
    # layout
    (" 42 ", "42"), ("$42$", "42"), (r"\(42\)", "42"), ("42.", "42"), (r"\left(1,2\right)", "(1,2)"),
    (r"\dfrac{1}{2}", r"\frac{1}{2}"), (r"\tfrac12", r"\frac{1}{2}"), (r"\frac12", "1/2"), (r"\frac 59", "5/9"),
    (r"\frac9{19}", r"\frac{9}{19}"), (r"\frac{9}2", r"\frac{9}{2}"), (r"\sqrt3", r"\sqrt{3}"), ("x^{2}", "x^2"),
    (r"4210_{5}", "4210_5"), (r"x \le 3", r"x\leq3"), (r"\lbrace 1\rbrace", r"\{1\}"), ("5−3x", "5-3x"),
    (r"\mathrm{east}", r"\text{east}"), (r"\text{\textbf{(C)}}", r"\text{(C)}"), ("π", r"\pi"), ("½", r"\frac{1}{2}"),
    # numbers
    ("2.0", "2"), ("2.", "2"), ("007", "7"), (".5", "0.5"), ("0.50", "0.5"), ("-0.5", "-.5"), ("1,000", "1000"),
    (r"10,\!080", "10080"), (r"11,\! 111,\! 111,\! 100", "11111111100"), ("1{,}234", "1234"), ("0.5", r"\frac{1}{2}"),
    ("0.25", "1/4"), ("5 million", "5000000"), ("1.5 thousand", "1500"), (r"-\frac{1}{2}", r"\frac{-1}{2}"),
    (r"1\frac45", "9/5"), ("1 4/5", r"1\frac{4}{5}"), (r"-1\frac{1}{2}", "-1.5"), ("137 1/2", r"137 \frac{1}{2}"),
    # units, currency, percent, degrees
    ("5 cm", "5"), (r"5\text{ cm}", "5"), (r"864 \mbox{ inches}^2", "864"), (r"15\mbox{ cm}^2", "15"),
    (r"5.4 \text{ cents}", "5.4"), (r"\frac{270}7\text{ degrees}", r"\frac{270}{7}"), ("3 hours", "3"),
    (r"\$36", "36"), (r"\$32,\!348", "32348"), ("$18.90", "18.9"), (r"42\%", "42"), ("42%", "42"),
    (r"90^\circ", "90"), (r"90^{\circ}", "90"), ("90°", "90"), (r"90\text{ degrees}", r"90^\circ"),
    ("12 square feet", "12"), ("60 mph", "60"),
    # names on the left
    ("x=5", "5"), ("y = 2x+3", "2x+3"), ("f(x)=x", "x"), (r"x \in [-2,7]", "[-2,7]"), (r"\alpha=1", "1"),
    # case, single brackets
    ("EAST", r"\text{east}"), ("(C)", "C"), ("c", r"\text{(C)}"),
    # tuples, intervals, lists
    ("(1,2)", "( 1 , 2 )"), (r"(3,\frac{\pi}{2})", r"(3,\pi/2)"), ("(3,4]", r"\left(3,4\right]"), ("1, -2", "1,-2"),
    ("1 and 2", "1,2"), ("1 or 2", "1, 2"), ("(0.5,1)", r"(\frac12,1)"), (r"\{1,2\}", r"\left\{1, 2\right\}"),
    # symbolic difference zero
    ("x^2+1", "1+x^2"), ("2x+2x", "4x"), ("2(x+1)", "2x+2"), ("(x+y)^2", "x^2+2xy+y^2"), ("x*y", "yx"),
    (r"\frac{\sqrt{3}}{3}", r"1/\sqrt{3}"), (r"\sqrt{8}", r"2\sqrt{2}"), (r"\frac{\pi}{2}", r"\pi/2"),
    ("pi/2", r"\frac{\pi}{2}"), (r"2\cdot\pi", r"2\pi"), (r"\frac{x}{2}", "x/2"), (r"\sqrt[3]{16}", r"2\sqrt[3]{2}"),
    ("sqrt(2)/2", r"\frac{1}{\sqrt{2}}"), (r"2 \times x", "2x"),
]  # fmt: skip

DIFFERENT = [
    # empty never matches
    ("", "42"), ("42", ""), ("", ""), (" ", " "), ("$$", "$$"),
    # numbers
    ("42", "43"), ("5", "-5"), ("0.5", "0.05"), ("1000", "100"), ("5", "500"), ("1/3", "0.333333"), ("1,2", "12"),
    # an unreduced fraction is wrong, and an integer must be written as one
    ("2/4", "1/2"), (r"\frac{2}{4}", r"\frac{1}{2}"), (r"\frac{-2}{4}", r"-\frac{1}{2}"), ("10/5", "2"), ("4/2", "2"),
    ("1+1", "2"), (r"\sqrt{4}", "2"), ("2^{10}", "1024"), ("6", "12/2"),
    # brackets, length, order
    ("(1,2)", "[1,2]"), ("(1,2]", "(1,2)"), ("(1,2)", "(1,2,3)"), ("(1,2)", "(2,1)"), ("1,2", "2,1"), ("1", "1,2"),
    (r"\{1,2\}", "(1,2)"), ("1,2", "(1,2)"), (r"\{5\}", "5"), ("(1,)", "(1,2)"), ("[3,4)", "(3,4]"),
    # words and letters
    ("north", "south"), ("no", "yes"), ("A", "B"), ("x", "y"), ("listen", "silent"), ("even", "odd"),
    ("IX", "XI"), ("AB", "BA"),
    # algebra that is not the same
    ("x+1", "x-1"), ("x^2", "x^3"), (r"\sqrt{x^2}", "x"), (r"\sqrt{2}1", r"\sqrt{21}"),
    (r"\frac{x}{y}", r"\frac{y}{x}"),
    (r"1-1/e", r"1+1/e"), ("a+b+c", "c+b+a"), (r"4210_7", "4210_8"), ("42x", "42"), ("43=42", "42"), ("x2", "2x"),
    # towers, code, noise
    ("9^9^9^9", "9"), ("x^{y^{x}}", "x^{x^{y}}"), ("__import__('os')", "1"), (r"\frac{1}{", "1"), ("{" * 50, "1"),
    ("9" * 401, "9"), ("1" * 5000, "1"), ("nan", "1"), (r"\frac{1}{0}", r"\frac{2}{0}x"), ("((((((1", "1"),
]  # fmt: skip


def test_the_table_is_large_enough() -> None:
    assert len(EQUAL) + len(DIFFERENT) >= 150


def test_equal_in_both_directions() -> None:
    assert [(a, b) for a, b in EQUAL if not (equal(a, b) and equal(b, a))] == []


def test_different_in_both_directions() -> None:
    assert [(a, b) for a, b in DIFFERENT if equal(a, b) or equal(b, a)] == []
