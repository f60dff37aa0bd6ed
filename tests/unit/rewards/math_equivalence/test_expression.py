from __future__ import annotations

import pytest

from winnow.rewards.math_equivalence.expression import Unreadable, proportional, read, same


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ("1+2*3", "7", True),
        ("-2^2", "-4", True),
        ("(-2)^2", "4", True),
        ("2--3", "5", True),
        ("1/2/3", "1/6", True),
        (r"1\frac{2}{3}", "5/3", True),
        (r"3\frac{22}{7}", "66/7", True),  # improper: a product
        (r"\sqrt{2}\sqrt{8}", "4", True),
        (r"\sqrt{\frac{a}{b}}", r"\frac{\sqrt{a}}{\sqrt{b}}", True),
        (r"\sqrt{ab}", r"\sqrt{a}\sqrt{b}", True),
        (r"\sqrt{-4}", "2", False),
        (r"\sqrt{x}", r"\sqrt{-x}", None),
        (r"\sqrt[3]{-8}", "-2", True),
        (r"4^{1/2}", "2", True),
        (r"x^{1/3}", r"\sqrt[3]{x}", True),
        (r"x^{-\frac{2}{3}}", r"\frac{1}{\sqrt[3]{x^2}}", True),
        ("x^{0.2}", r"\sqrt[5]{x}", True),
        ("x^{2/6}", "x^{1/3}", True),
        ("x^{1/3}", r"\sqrt[3]{x^2}", False),
        ("x^{1/3}", "x^{1/5}", False),
        ("x^{3/2}", r"x\sqrt{x}", True),
        ("a^{x/2}", r"\sqrt{a^x}", True),
        ("a^{x/3}", r"\sqrt[3]{a^x}", True),
        ("a^{x}a^{y}", "a^{x+y}", True),
        ("a^{x/2}", "a^{x/3}", False),
        (r"x^{-1}", r"\frac{1}{x}", True),
        (r"\sqrt{x^2}", "x", False),
        ("0.1+0.2", "0.3", True),
        (r"\sqrt{2}", "1.41421356237309504880", False),
        ("1-5051/2^{100}", "1-5051/2^{101}", False),
        (rf"\sqrt{{{10**80}}}", rf"\sqrt{{{10**80 + 2}}}", False),
        ("1/0", "2/0", None),
        (r"\sqrt{-1}", r"\sqrt{-2}", None),
    ],
)
def test_expressions_are_compared_exactly(a: str, b: str, verdict: bool | None) -> None:
    assert same(read(a), read(b)) is verdict


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x2",
        "1+",
        "(1",
        "1)",
        r"\sin x",
        "9^9^9",
        "2^{3^4}",
        "a b = c",
        "1 2",
        r"\frac12",
        "x!",
        "é",
        "1+" * 300 + "1",
        r"1\overline{",
        r"1.\overline{",
        r"0.\overline{3",
        r"\sqrt[",
        r"\frac{1}{",
        "x^{",
        "x^",
        r"2\frac{1",
        "-",
    ],
)
def test_what_is_not_in_the_language_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        read(text)


@pytest.mark.parametrize("text", ["9^{99999}", "(((9^{900})^{900})^{900})", r"\sqrt[99]{2}"])
@pytest.mark.timeout(120)
def test_values_have_bounds(text: str) -> None:
    with pytest.raises(Unreadable):
        same(read(text), read("1"))


def test_depth_is_bounded() -> None:
    with pytest.raises(Unreadable):
        read("(" * 60 + "1" + ")" * 60)


def test_equations_are_equal_up_to_a_factor() -> None:
    assert proportional(read("2x-y+3"), read("4x-2y+6")) is True
    assert proportional(read("x^2-12x+39"), read("x^2-12x+38")) is False
    assert proportional(read("x-x"), read("x")) is None
