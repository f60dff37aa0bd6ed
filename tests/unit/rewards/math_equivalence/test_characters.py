"""Characters of Unicode in an answer: exponents, indices, fractions, roots, dashes and Greek letters; and layout."""

from __future__ import annotations

import unicodedata
from fractions import Fraction

import pytest

from winnow.rewards.math_equivalence import algebra
from winnow.rewards.math_equivalence.grader import equal
from winnow.rewards.math_equivalence.latex import in_ascii
from winnow.rewards.math_equivalence.strict import equal as strictly_equal

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
FRACTIONS = "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"

needs_algebra = pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")


@pytest.mark.parametrize("base", [2, 3, 10, 12])
def test_raised_digits_are_an_exponent_and_no_further_digits(base: int) -> None:
    for exponent in range(-3, 13):
        text, value = f"{base}{str(exponent).translate(RAISED)}", str(Fraction(base) ** exponent)
        for same in (equal, strictly_equal):
            assert same(text, f"{base}^{{{exponent}}}")
            assert not same(text, f"{base}{exponent}")
        assert equal(text, value)
        assert not equal(text, str(Fraction(base) ** (exponent + 1)))


def test_characters_of_fractions_are_fractions_or_end_a_mixed_number() -> None:
    for character in FRACTIONS:
        value = Fraction(unicodedata.numeric(character)).limit_denominator(10)
        top, bottom = value.numerator, value.denominator
        assert equal(character, f"{top}/{bottom}")
        assert equal(f"1{character}", f"{bottom + top}/{bottom}")
        assert equal(f"-2{character}", rf"-2\frac{{{top}}}{{{bottom}}}")
        assert not equal(f"2{character}", f"2{top}/{bottom}") or bottom == 10  # 21/10 is two and a tenth
        assert not equal(character, f"{top}/{bottom + 1}")


# (answer, gold)
EQUAL = [
    ("3×10⁸", "300000000"), ("1.2×10⁵", "120000"), ("3×10⁻³", "0.003"), ("xⁿ", "x^n"), ("x⁽ⁿ⁺¹⁾", "x^{(n+1)}"),
    ("101₂", "101_2"), ("x₁₀", "x_{10}"), ("25 cm²", r"25 \text{ cm}^2"), ("x²y³", "x^2y^3"),
    ("√12", r"2\sqrt{3}"), ("2√3", r"\sqrt{12}"), ("√(12)", r"\sqrt{12}"), ("√1.44", "1.2"),
    ("sqrt12", "√12"), ("2sqrt3", "√12"), ("sqrt 2", r"\sqrt2"), ("75 deg", r"75^\circ"), ("∛8", "2"),
    ("∜16", "2"), ("√x", r"\sqrt{x}"),
    ("‑5", "-5"), ("‐5", "-5"), ("–5", "-5"), ("‒5", "-5"), ("2⋅3", "6"), ("2•3", "6"), ("2∙x", "2x"),
    ("2α+β", r"\beta+2\alpha"), ("λ", r"\lambda"), ("Δ", r"\Delta"), ("θ = 45°", r"45^\circ"), ("x ≠ 3", r"x \neq 3"),
    ("⟨1,2⟩", r"\langle 1,2 \rangle"), ("5。", "5"),
]  # fmt: skip
DIFFERENT = [
    ("1.2×10⁵", "126"), ("3×10⁸", "324"), ("10⁻³", "7"), ("xⁿ", "xn"), ("x₁", "x1"), ("a₁", "a_2"), ("101₂", "1012"),
    ("x²", "x^3"), ("25 cm²", r"25 \text{ cm}^3"), ("√12", "2"), ("√12", r"\sqrt{2}"),
    ("sqrt12", "2"), ("sqrt3x", r"\sqrt{3x}"), ("75 deg", "76"), ("∛8", r"\sqrt{8}"),
    ("∜16", "4"), ("‑5", "5"), ("‐5", "5"), ("2⋅3", "23"), ("α", r"\beta"), ("Δ", r"\delta"),
    ("2α+β", r"2\beta+\alpha"),
    ("5≅6", "5"), ("5≃6", "5"), ("⊕5", "5"), (r"\ln 2 ≅ 3", r"\ln 2"),
    ("5α", "5"), ("≠5", "5"), ("x ≠ 3", "x = 3"), ("⟨1,2⟩", r"\langle 2,1 \rangle"), ("5。6", "5"),
]  # fmt: skip


@needs_algebra
def test_a_character_has_the_meaning_of_its_macro() -> None:
    assert [pair for pair in EQUAL if not equal(*pair)] == []
    assert [pair for pair in DIFFERENT if equal(*pair)] == []
    strict = [pair for pair in DIFFERENT if strictly_equal(*pair)]
    assert strict == [("25 cm²", r"25 \text{ cm}^3"), ("Δ", r"\delta")]  # it has no units, and ignores case


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("2⁻¹⁰", "2^{-10}"),
        ("xᵃ", "x^{a}"),
        ("1⅜", r"1\frac{3}{8}"),
        ("√16", r"\sqrt{16}"),
        ("２５", "25"),
        ("e\u0301", "é"),
        ("plain", "plain"),
        ("a\0b", "a b"),
    ],
)
def test_one_spelling_in_ascii(text: str, spelled: str) -> None:
    assert in_ascii(text) == spelled


# (answer, gold)
LAYOUT = [
    (r"\begin{bmatrix} 1 & 2 \\[4pt] 3 & 4 \end{bmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    (r"\begin{pmatrix}1\\[0.3em]2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    (r"0.\dot{3}", r"\frac13"), (r"0.\dot3", r"0.\overline{3}"), (r"0.1\dot{6}", r"\frac16"),
    (r"0.\dot{1}4285\dot{7}", r"\frac17"), (r"0.\dot{1}\dot{2}", r"\frac{4}{33}"), ("0.(3)", "1/3"),
    ("3.(45)", "38/11"),
    (r".\overline{3}", r"\frac13"), (r"-.1\overline{6}", r"-\frac16"),
    ("{1,2,3}", r"\{1,2,3\}"), ("{1, 2, 3}", "3,2,1"), ("{5}", "5"), ("**5**", "5"), (r"**\frac12**", "0.5"),
    ("(1,2);(3,4)", "(1,2),(3,4)"), ("(1,2); (3,4)", "(3,4),(1,2)"), (r"\{(1,2);(3,4)\}", r"\{(1,2),(3,4)\}"),
    (r"\boldsymbol{5}", "5"), (r"\bm{x}", "x"), (r"{\bf 5}", "5"), (r"\underline{5}", "5"), (r"\textsf{5}", "5"),
    (r"\mathsf{A}", "A"), (r"\textcolor{red}{5}", "5"), (r"\nicefrac{1}{2}", "0.5"), (r"\displaystyle .5", "0.5"),
    ("5 = x", "5"), (r"\frac{1}{2} = x", "0.5"), (r"2\sqrt{3} = r", r"\sqrt{12}"), ("5 cm = x", "5"),
    ("x^{1/3}", r"\sqrt[3]{x}"), (r"\frac{1}{x^{2/3}}", r"\frac{1}{\sqrt[3]{x^2}}"), ("(-8)^{1/3}", "-2"),
    (r"\begin{cases} x=1 \\ y=2 \end{cases}", "x=1, y=2"), (r"\begin{aligned} y&=2,\\ x&=1.\end{aligned}", "x=1, y=2"),
    (r"\left\{\begin{array}{l} x=1 \\ y=2 \end{array}\right.", r"x=1 \text{ and } y=2"),
    (r"\begin{cases} x>1 \\[2pt] x<3 \end{cases}", r"x>1 \text{ and } x<3"),
    ("5 > x > 3", "3<x<5"), (r"5 \ge x > 3", r"3 < x \le 5"), ("x^2 > y > 0", "0<y<x^2"),
]  # fmt: skip
OTHER_LAYOUT = [
    (r"\begin{bmatrix} 1 & 2 \\[4pt] 3 & 5 \end{bmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    (r"\begin{pmatrix}1\\[2,3]\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    (r"0.\dot{3}", "0.3"), (r"0.3\dot{3}", "0.33"), (r"0.\dot{1}4285\dot{7}", "0.142857"), (r"\dot{x}", "x"),
    ("0.(3)", "0.3"), ("3.(45)", "3.45"), ("0.(3)", "0"), ("2(3)", "2.3"), (r".\overline{3}", ".3"),
    ("{1,2,3}", r"\{1,2,4\}"), ("{1,2}", "(1,2)"), ("{1,2}", "[1,2]"), ("{1}{2}", "12"), ("**5**", "6"), ("2**3", "23"),
    ("(1,2);(3,4)", "(1,2),(3,5)"), ("(1,3);(2,4)", "(1,2),(3,4)"), ("1,5; 2,5", "1,5,2,5"), ("(1;2),(3;4)", "1,2,3,4"),
    (r"\boldsymbol{5}", "6"), (r"\underline{5}6", "56"), (r"\textcolor{red}{5}", "6"), (r"\displaystyle .5", "5"),
    ("6 = x", "5"), ("5 = 6", "5"), ("5 = 2x", "5"), ("5 = x = 6", "5"), ("5 = x+1", "5"), ("5 = y", "x=5"),
    ("5 < x", "5"), ("5 = x", "x"), ("x = y", "x"), ("2x = y", "2x"), (r"5 \ne x", "5"),
    ("x^{1/3}", r"\sqrt{x}"), ("x^{1/3}", r"\sqrt[3]{x^2}"), ("x^{1/2}", r"\sqrt{-x}"), ("(-8)^{1/3}", "2"),
    ("(-4)^{1/2}", "-2"), ("(x^2)^{1/2}", "x"),
    (r"\begin{cases} x=1 \\ y=2 \end{cases}", "x=2, y=1"), (r"\begin{cases} 5 \\ 6 \end{cases}", "5"),
    (r"\begin{cases} x<1 \\ x>3 \end{cases}", r"x<1 \text{ or } x>3"),
    (r"\begin{cases} x=1 \\ y=2 \end{cases}", "(1,2)"),
    (r"\begin{cases} x & x>0 \\ -x & x<0 \end{cases}", "x, -x"),
    ("5 > x > 3", "3 < x"), ("3 > x > 5", "3<x<5"), (r"5 > x \ge 3", "3<x<5"), ("5 > y > 3", "3<x<5"),
    ("3>5>x", "3<x<5"),
    (r"\not= 5", "5"), (r"x \not= 3", "x = 3"),
]  # fmt: skip


@needs_algebra
def test_layout_does_not_change_an_answer() -> None:
    assert [pair for pair in LAYOUT if not equal(*pair)] == []


@needs_algebra
def test_what_only_looks_like_the_gold_is_wrong() -> None:
    assert [pair for pair in OTHER_LAYOUT if equal(*pair)] == []
    assert not strictly_equal(r"\not= 5", "5")
