"""The strict grader: it accepts the textbook's answer, and rather rejects a right answer than accepts a wrong one.

Two answers are equal when their canonical texts are. These have no units, currency, percent signs or `x =` (the rules
of Hendrycks et al., 2021, arXiv 2103.03874). Else their elements are compared, by the rules of the sympy grader of
PRM800K (Lightman et al., 2023, arXiv 2305.20050) and Dr. GRPO (Liu et al., 2025, arXiv 2503.20783). Brackets and
lengths must be equal, and two fractions must be literally equal, so an unreduced one is wrong. An integer never equals
an expression that evaluates to it. Anything else needs a symbolic difference of zero in at most two letters. Winnow
evaluates that difference exactly (`expression.py`), where they execute the text with sympy, without a bound.
"""

from __future__ import annotations

import re

from winnow.rewards.math_equivalence import expression
from winnow.rewards.math_equivalence.latex import UPRIGHT, brackets, spelling, split_top, tidied, tidy
from winnow.rewards.math_equivalence.names import capitals
from winnow.rewards.math_equivalence.units import compound, in_digits, without_signs

MAX_LETTERS = 2
_LENGTHS = "millimeter|centimeter|meter|kilometer|mile|inche|inch|foot|feet|yard|mm|cm|km|ft|yd"
_TIMES = "second|minute|hour|day|week|month|year|sec|min|hr"
_OTHERS = (
    "cent|dollar|usd|euro|rupee|degree|radian|kilogram|gram|kg|mg|pound|lb|ounce|oz|liter|litre|ml|mph|kph|percent"
)
_UNIT = re.compile(
    rf"(?<=[\d}})\s.])\s*(?:square |cubic |sq\.? )?(?<![a-zA-Z\\])"
    rf"(?:{_LENGTHS}|{_TIMES}|{_OTHERS}|unit|point|people|way|(?:(?<=[\d}})] )|(?<=[\d}})]))in)s?(?![a-zA-Z{{(=])"
    r"(?:\s*\^\s*\{?\s*[23]\s*\}?)?(?!\s*\.?\d)",
    re.IGNORECASE,
)
_LEFT_SIDE = re.compile(r"^(?:[a-zA-Z]{1,2}|\\[a-zA-Z]+)(?:\([a-z]\))?\s*(?:=|\\in(?![a-zA-Z]))(?!.*=)")
_SLASH = re.compile(r"(?<![\w.)}/^])(-?\d+)/(\d+)(?![\w.({/])")
_FRACTION = re.compile(r"(-?)(?:\\frac\{(-?)(\d+)\}\{(\d+)\})")
_INTEGER = re.compile(r"[-+]?\d+(?:\.0*)?", re.ASCII)
_WORDS = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}")


def equal(answer: str, gold: str) -> bool:
    """True when `answer` is `gold` in another spelling. Empty or oversized text equals nothing."""
    texts = tidied(answer, gold)
    if texts is None:
        return False
    a, g = map(_canonical, texts)
    if not a or not g:
        return False
    return a.lower() == g.lower() or (capitals(a, g) is not False and _same_elements(a, g))


def canonical(text: str) -> str:
    r"""One text per answer: `$1/2$ cm` and `x = \tfrac12` have the same text; `1/2` and `0.5` do not."""
    return _canonical(tidy(text))


def _canonical(text: str) -> str:
    """The canonical form of a tidy text."""
    text = _LEFT_SIDE.sub("", _without_units(text)).strip()
    text = re.sub(r"\s*,?\s(?:or|and)\s", ",", text)
    text = _SLASH.sub(_as_fraction, text)
    text = re.sub(r"(?<![\d.])\.(?=\d)", "0.", text)
    return spelling(text)


def _without_units(text: str) -> str:
    """Without the units of the textbook, which are fewer than `math` has, and without signs of units."""
    text = in_digits(text.replace(UPRIGHT, ""))
    rest = without_signs(_UNIT.sub(" ", " " + text))
    return text if compound(text) or not any(c.isalnum() for c in rest) else " ".join(rest.split())


def _as_fraction(match: re.Match[str]) -> str:
    sign = "-" if match[1].startswith("-") else ""
    return rf"{sign}\frac{{{match[1].removeprefix('-')}}}{{{match[2]}}}"


def _same_elements(answer: str, gold: str) -> bool:
    a_open, a_inside, a_close = brackets(answer)
    g_open, g_inside, g_close = brackets(gold)
    mine, theirs = split_top(a_inside), split_top(g_inside)
    if len(mine) != len(theirs):
        return False
    if (len(theirs) > 1 or "\\{" in (a_open, g_open)) and (a_open, a_close) != (g_open, g_close):
        return False  # (5) is 5, but a set of one element is not its element
    return all(_same_value(x, y) for x, y in zip(mine, theirs, strict=True))


def _same_value(answer: str, gold: str) -> bool:
    if answer.lower() == gold.lower():
        return bool(answer)
    mine, theirs = _FRACTION.fullmatch(answer), _FRACTION.fullmatch(gold)
    if mine and theirs:
        return _literally(mine) == _literally(theirs)
    if _INTEGER.fullmatch(answer) or _INTEGER.fullmatch(gold):
        both = _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(gold)
        return bool(both) and int(answer.partition(".")[0]) == int(gold.partition(".")[0])
    return _symbolically_equal(answer, gold)


def _literally(match: re.Match[str]) -> tuple[bool, str, str]:
    return (match[1] == "-") != (match[2] == "-"), match[3], match[4]


def _symbolically_equal(answer: str, gold: str) -> bool:
    if _WORDS.search(re.sub(r"sqrt", "", answer + " " + gold)):
        return False
    try:
        a, g = expression.read(answer), expression.read(gold)
        return len(a.letters() | g.letters()) <= MAX_LETTERS and expression.same(a, g) is True
    except expression.Unreadable:
        return False
