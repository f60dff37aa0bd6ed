"""Primes, percent, degrees, minutes of arc and Greek capitals: computed, or different unless the texts agree."""

from __future__ import annotations

import pytest

from winnow.rewards.math_equivalence import algebra, signs
from winnow.rewards.math_equivalence.grader import equal
from winnow.rewards.math_equivalence.latex import tidy

pytestmark = pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")

# (gold, answer)
EQUAL = [
    # one sign in several spellings
    (r"63^{\circ} 45^{\prime}", r"63^\circ 45'"), (r"5^{\prime\prime}", "5''"), (r"5^{\prime \prime}", '5"'),
    (r"72'", "72′"), ("72''", "72″"), (r"y''", r"y^{\prime\prime}"), (r"y'", r"y^\prime"), ("f''(x)", "f^{''}(x)"),
    (r"90^\circ", "90°"), (r"90^\circ", r"90\degree"), (r"90^\circ", "90º"), (r"90^{\circ}", r"90^{\circ }"),
    (r"63^\circ 45' 10''", r"63° 45′ 10″"), (r"25^\circ \text{C}", "25 ℃"), (r"62.5\%", "62.5％"),
    # a sign of a bare number is omitted
    (r"20\%", "20"), (r"90^\circ", "90"), (r"x = 45^\circ", "45"), (r"\angle ABC = 45^\circ", r"45^\circ"),
    (r"30^\circ, 60^\circ", "60, 30"), (r"(30^\circ, 60^\circ)", "(30, 60)"), (r"\frac{270}{7}^\circ", "270/7"),
    (r"\left(\frac{270}{7}\right)^\circ", r"\frac{270}{7}"), (r"-40^\circ", "-40"), (r"12\frac12\%", "12.5"),
    ("30, 60", r"30^\circ, 60^\circ"), ("45", r"45^\circ"), ("45", r"x = 45^\circ"), (r"45^\circ", r"\theta = 45"),
    # percent and degrees are computed inside an expression
    (r"x(1-20\%)", "0.8x"), ("0.8x", r"x(1-20\%)"), (r"100(1+5\%)", "105"), (r"50\%", r"20\%+30\%"),
    (r"a(1+10\%)^2", "1.21a"), (r"(5+15)\% x", r"\frac{x}{5}"), (r"1200(1-x\%)", r"1200 - 12x"),
    (r"2-\sqrt{3}", r"\tan 15^\circ"), (r"\frac{1}{2}", r"\sin 30^{\circ}"), (r"\cos 60°", "0.5"),
    (r"\frac{\sqrt{3}}{2}", r"\cos\left(30^\circ\right)"), (r"2\sin 18^\circ", r"2\sin\frac{\pi}{10}"),
    (r"180^\circ - \alpha", r"\pi - \alpha"), (r"180^\circ-2\alpha", r"2(90^\circ-\alpha)"),
    (r"\sin^2 15^\circ", r"\frac{1-\cos 30^\circ}{2}"), (r"\frac{3}{4}", r"\cos^2 30 \text{ degrees}"),
    (r"\tan \frac{90}{2}^\circ", "1"), (r"\frac{180^\circ}{n}", r"\frac{\pi}{n}"),
    # names with a prime, and derivatives
    ("y'' + 4y = 0", "4y + y'' = 0"), ("f'(x) = 2x", "f'(x) = x + x"), (r"y^{\prime}+r y-r x(t)=0", "y'+ry-rx(t)=0"),
    (r"B' \cup C", r"B^{\prime} \cup C"), ("2A'", "A' + A'"), (r"x_0' + 1", r"1 + x_0^{\prime}"),
    (r"\frac{dy}{dx} = 2x", r"2x = \frac{d y}{d x}"), (r"\frac{d^{2} y}{d x^{2}}+y=0", r"y + \frac{d^2y}{dx^2} = 0"),
    (r"y' = \sin x + y", r"y' = y + \sin x"), (r"\theta''+\theta=0", r"\theta + \theta^{\prime\prime} = 0"),
    # Greek capitals
    (r"\frac{\Delta}{\delta}", r"\Delta / \delta"), (r"2\sin\Delta", r"\sin \Delta + \sin\Delta"),
]  # fmt: skip

DIFFERENT = [
    # primes
    ("y'' + 4y = 0", "y' + 4y = 0"), ("y'' + 4y = 0", "y + 4y = 0"), ("h'(3)", "h(3)"), ("h'(3)", "h''(3)"),
    (r"B' \cup C", r"B \cup C"), (r"B' \cup C", r"B \cup C'"), (r"(A \cup B)'", r"A \cup B"), ("A'B", "AB'"),
    ("f'(x) = 2x", "f(x) = 2x"), ("y' = 2x", "y = 2x"), (r"y^{\prime}+r y-r x(t)=0", "y+ry-rx(t)=0"), ("x'", "x"),
    (r"y' = \sin x", r"y = \sin x"), (r"\sin' x", r"\sin x"), (r"\pi'", r"\pi"), ("(fg)'", "fg"),
    # minutes and seconds of arc
    ("72''", "72'"), ("12'", r"12^\circ"), ("12'", "12"), ("12''", "12"), ("12", "12'"), ("12", "12''"),
    (r"63^\circ 45'", r"63^\circ 45''"), (r"63^\circ 45'", r"63^\circ"), (r"5'", "5''"), (r"5^\circ", "5''"),
    # percent
    (r"x(1-20\%)", "-19x"), (r"x(1-20\%)", "x(1-20)"), (r"100(1+5\%)", "600"), ("0.2", r"0.2\%"), ("20", r"20\%"),
    (r"20\%", "0.2"), ("0.2", r"20\%"), (r"20\% x", "20x"), ("20x", r"20\% x"), (r"30\%+20", "50"),
    (r"30\%+20", r"50\%"),
    (r"50\%", r"30\%+20"), (r"(20\%, 30)", "(20, 30)"), (r"20\%, 30\%", r"20, 30\%, 1"), ("5", "5‰"), ("5‰", "5"),
    # degrees
    (r"2\sin 18^\circ", r"2\sin 18"), (r"2\sin 18", r"2\sin 18^\circ"), (r"\tan 15^\circ", r"\tan 15"),
    (r"180^\circ-\alpha", r"180-\alpha"), (r"90^\circ", r"90\%"), (r"(3, 45^\circ)", "(3, 45)"),
    ("(3, 45)", r"(3, 45^\circ)"),
    (r"25^\circ \text{C}", r"25^\circ \text{F}"), (r"90^\circ", r"\frac{\pi}{2}"), (r"\frac{\pi}{2}", r"90^\circ"),
    (r"90^\circ", r"90 \text{ radians}"), (r"2\sin 18 \text{ degrees}", r"2\sin 18"), (r"\cos x^\circ", r"\cos x"),
    # derivatives and Greek letters
    (r"\frac{dy}{dx}", r"\frac{y}{x}"), (r"\frac{dy}{dx}=2", r"\frac{y}{x}=2"),
    (r"\frac{d^2y}{dx^2}", r"\frac{dy}{x^2}"),
    (r"\frac{dy}{dx}", r"\frac{dx}{dy}"), (r"\delta", r"\Delta"), (r"2\delta x", r"2\Delta x"), (r"\Omega", r"\omega"),
    (r"\sin\Phi", r"\sin\phi"), (r"\frac{\sin\delta}{\Delta}", r"\frac{\sin\Delta}{\delta}"), (r"\Gamma", r"\gamma"),
]  # fmt: skip


def test_equal_in_another_spelling_or_by_value() -> None:
    assert [pair for pair in EQUAL if not equal(pair[1], pair[0])] == []


def test_a_dropped_sign_makes_another_answer() -> None:
    assert [pair for pair in DIFFERENT if equal(pair[1], pair[0])] == []


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        (r"5^{\prime\prime}", "5''"),
        (r"5^\prime", "5'"),
        ("5″", "5''"),
        (r"90^{\circ}", r"90^\circ"),
        ("62.5%", r"62.5\%"),
        (r"62.5 \text{ percent}", r"62.5\%"),
        ("90 degrees", r"90^\circ"),
    ],
)
def test_one_spelling(text: str, spelled: str) -> None:
    assert tidy(text) == spelled


@pytest.mark.parametrize(
    ("text", "computed"),
    [
        (r"\sin 18^\circ", r"\sin \frac{18\pi}{180}"),
        (r"\sin\frac{x}{2}^\circ", r"\sin\frac{\frac{x}{2}\pi}{180}"),
        (r"x(1-20\%)", r"x(1-\frac{20}{100})"),
        (r"\sin(x+30)^\circ", r"\sin\frac{(x+30)\pi}{180}"),
        (r"\sin x^2^\circ", None),
        (r"\sin^\circ", None),
        (r"5\%^2", None),
        (r"5\%" * 9, None),
        ("y'", None),
        (r"\sin x", r"\sin x"),
    ],
)
def test_what_computer_algebra_reads(text: str, computed: str | None) -> None:
    assert signs.computed(text) == computed


def test_only_equal_names_get_equal_letters() -> None:
    answer, gold = signs.named("y''+y'", "y'+y''") or ("", "")
    assert answer.split("+")[0].strip() == gold.split("+")[1].strip() != answer.split("+")[1].strip()
    assert signs.named("x+1", "y") == ("x+1", "y")
    assert signs.named("".join(f"{a}'+" for a in "abcdefghijklmnopqrstuvwxyz"), "1") is None
