"""What is too large is refused before anything is parsed. Calls are counted here; nothing is timed."""

from __future__ import annotations

import pytest

from winnow.rewards.math_equivalence import algebra, exact, grader

BOMBS = {
    "bracketed tower": "((2^{999})^{999})^{999}",
    "bracketed tower, deeper": "(((2^{99})^{99})^{99})^{99}",
    "tower": "9^{9^{9^{9}}}",
    "tower without braces": "9^9^9^9",
    "tower of letters": "x^{y^{z^{x^{y^{z}}}}}",
    "squares of squares": "(" * 11 + "x+1" + ")^{9}" * 11,
    "tower in a function": r"\sin(((2^{999})^{999})^{999})",
    "expansion": r"\sin(x)(x+y+z+w+1)^{60}",
    "factorial of a factorial": "((5!)!)!",
    "factorials": "9!!!!!!!!!!",
    "binomials": r"\binom{\binom{999}{400}}{300}",
    "exponentials": r"\exp(\exp(\exp(\exp(9))))",
    "gamma": r"\Gamma(99999999)",
    "sum": r"\sum_{n=1}^{10^9} n",
    "sines": r"\sin(" * 12 + "x" + ")" * 12,
    "subscripts": "x_" * 24 + "x",
    **{f"{count} {sign!r}": sign * count + "1" for count in (1000, 4000) for sign in "|-+!^'_&:"},
    "bars": "|x" * 1000,
    "signs and blanks": "- " * 1500 + "1",
    "fractions": r"\frac{1}{x}" * 300,
    "roots": r"\sqrt " * 600 + "2",
    "functions": r"\sin " * 600 + "x",
    "letters": "x" * 4000,
    "product": r"\cdot ".join(["x"] * 600),
    "relations": "<".join(["x"] * 1000),
    "long": r"\ln 5" + "0" * 50_000,
    "commas": "," * 50_000,
}


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The pairs that computer algebra parses, in place of parsing them."""
    pairs: list[tuple[str, str]] = []
    monkeypatch.setattr(algebra, "_verified", lambda answer, gold: bool(pairs.append((answer, gold))))
    return pairs


def test_what_is_too_large_is_wrong_before_it_is_parsed(parsed: list[tuple[str, str]]) -> None:
    for name, bomb in BOMBS.items():
        for gold in (r"\ln 5", "x+1", r"\sqrt{2}", "1,2"):
            assert grader.equal(bomb, gold) is False, name
            assert grader.equal(gold, bomb) is False, name
        assert algebra.equal(bomb, r"\ln 5") is False, name
        assert parsed == [], name


@pytest.mark.parametrize(
    "text",
    [
        r"\omega_n^2 e^{-\zeta \omega_n t} \cos (\omega_n \sqrt{1-\zeta^2} t)-\frac{\zeta \omega_n^2}{\sqrt{1-\zeta^2}}"
        r" e^{-\zeta \omega_n t} \sin (\omega_n \sqrt{1-\zeta^2} t)",
        r"\frac{\cos (2 t)}{15}+C_1 e^t+C_2 e^{-t}+C_3 \cos (t)+C_4 \sin (t)",
        r"\frac{100!}{2^{50}}",
        "e^{x^2}",
        r"1-\frac{5051}{2^{100}}",
        "2^{1009}",
        r"\frac{d!}{2 k(d-k)!}",
        r"\frac{1}{2004!}",
        "(x+y)^{10}",
        "x^{99}+x^{98}+1",
    ],
)
def test_answers_to_real_problems_are_within_the_bounds(text: str, parsed: list[tuple[str, str]]) -> None:
    assert algebra.within(text)
    algebra.equal(text, text)
    assert parsed == [(text, text)]


@pytest.mark.parametrize("gold", [r"50\%", r"45^\circ"])
def test_many_groups_before_a_sign_are_wrong(gold: str) -> None:
    for sign in (r"\%", r"^\circ"):
        assert grader.equal("{1}" * 1100 + sign, gold) is False


def test_the_comparisons_of_lists_are_bounded() -> None:
    calls: list[str] = []

    def undecided(answer: str, gold: str) -> bool:
        calls.append(answer)
        return False

    answer, gold = (",".join(rf"{name} {i}" for i in range(1, 51)) for name in (r"\sin", r"\cos"))
    assert exact.compare(answer, gold, undecided) is False
    assert len(calls) <= 50
    lists = [",".join(rf"\ln {i}" for i in order) for order in (range(1, 51), range(50, 0, -1))]
    calls.clear()
    assert exact.compare(*lists, undecided) is True  # the same spellings in another order
    assert calls == []


def test_lists_of_lists_end_at_the_bound_on_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    gold = ",".join(f"({','.join(['1'] * 19)},{i})" for i in range(50))
    answer = ",".join(f"({','.join(['1'] * 19)},{i})" for i in range(100, 150))
    work = exact._Work(lambda *_: False)
    assert exact._compare(answer, gold, work) is False  # no element is found, so the first ends it
    assert work.comparisons <= 1 + 50 * 21
    monkeypatch.setattr(exact, "MAX_COMPARISONS", 100)
    assert exact.compare(answer, gold, lambda *_: False) is False
    assert exact.compare(gold[:-2] + "9)", gold + " ", lambda *_: False) is True
