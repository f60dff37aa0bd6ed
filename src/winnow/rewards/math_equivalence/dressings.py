r"""Dressings of an answer: what is written around a value without changing it.

A left side of an answer is omitted if it equals the right side (`50+20 = 70`), or has at least two letters (`m+n = 70`)
and so is no equation for one unknown. A gold may be a chain of equal values (`x = \frac{10}{2} = 5`, `E = mc^2 = 9`),
state its value twice (`0.5 \text{ or } \frac{1}{2}`), or have a noun (`9 (apples)`). Decimals may follow a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from winnow.rewards.math_equivalence import exact, expression
from winnow.rewards.math_equivalence.latex import brackets, spelling, split_top
from winnow.rewards.math_equivalence.names import NAME
from winnow.rewards.math_equivalence.signs import ANGLE
from winnow.rewards.math_equivalence.units import units_of

Same = Callable[[str, str], bool]

_NOT_AN_EQUATION = re.compile(
    r"[<>&]|\\(?:le|ge|ne|lt|gt|approx|equiv|sim|pm|mp|Rightarrow|implies|iff|to|in|notin|begin)(?![a-zA-Z])"
    r"|(?<![a-zA-Z\\])(?:not|or|and|if|no)(?![a-zA-Z])"
)
_LETTER = re.compile(r"\\(?:[a-zA-Z]+)|[a-zA-Z]")
_NO_LETTER = re.compile(
    r"\\(?:frac|sqrt|cdot|times|div|pi|circ|sin|cos|tan|cot|sec|csc|log|ln|exp|max|min|gcd|binom|lfloor|rfloor|lceil|rceil"
    r"|angle|overline|triangle|arcsin|arccos|arctan)"
)
_TWICE = re.compile(
    r"\s*,?\s+(?:or|i\.?\s?e\.?|that is|equivalently)\s*,?\s+|\s*\(\s*(?:or|i\.?\s?e\.?)\s+(?=[^()]*\)$)"
)
_QUANTITY = re.compile(  # names that are no unknown of an equation: m_{\max}, V_cone, f^{-1}(x)
    rf"{ANGLE}|[a-zA-Z]_\{{\\[a-z]+[^{{}}=]*\}}|[a-zA-Z]_[a-zA-Z]{{3,}}|[a-zA-Z]\^\{{-1\}}\s?\([a-z]\)"
)
_NOUN = re.compile(r"([-+]?(?:\d+(?:\.\d+)?(?:/\d+)?|\\frac\{\d+\}\{\d+\})) \(([a-zA-Z][a-zA-Z ]*[a-zA-Z])\)")
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
_APPROXIMATELY = re.compile(r"\\approx(?![a-zA-Z])")
_ROUNDED = re.compile(r"\s*(?P<number>[-+]?\d+(?:\.(?P<places>\d+))?)")
_CHAIN = 6  # sides of one text, at most


def value(answer: str, same: Same) -> str:
    """The answer without its left sides."""
    sides = _sides(answer)
    is_dressed = len(sides) > 1 and all(_is_left(side, sides[-1], same) for side in sides[:-1])
    return sides[-1] if is_dressed else answer


def readings(text: str, same: Same) -> list[str]:
    """The text, and the same value without repetitions: a chain of equal values by its first and its last side."""
    sides = _sides(text)
    first, *rest = sides
    middle = rest[:-1]
    if middle and _is_left(first, rest[-1], same) and all(_is_formula(s) or same(s, rest[-1]) for s in middle):
        return [text, f"{first} = {rest[-1]}", rest[-1]]
    if len(rest) == 1 and _QUANTITY.fullmatch(first):
        return [text, rest[0]]
    if len(rest) > 0 and all(not _letters(side) and same(side, rest[-1]) for side in sides[:-1]):
        return [text, rest[-1]]
    once = _stated_once(text, same)
    return [text] if once == text else [text, once]


def before_approximation(text: str) -> str:
    r"""`\frac{1}{3} \approx 0.333` without the decimals, if the number is rounded to them; another text unchanged.

    A value that `expression.py` does not read, such as `\sin 1`, is not compared with its decimals.
    """
    left, *others = _APPROXIMATELY.split(text)
    right = _ROUNDED.match(others[0]) if len(others) == 1 else None
    if right is None or (units_of(left) and units_of(others[0]) not in (frozenset(), units_of(left))):
        return text
    value, half = exact.value(left), Fraction(1, 2 * 10 ** len(right["places"] or ""))
    number, unit = expression.number(value), "" if units_of(left) else others[0][right.end() :]
    fits = _letters(value) <= {"e"} if number is None else abs(number - Fraction(right["number"])) <= half
    return left + unit if fits else text


def with_noun(gold: str, answer: str) -> str:
    """The gold `9 (apples)` as `9 apples` for an answer in words, and as 9 for a number; another gold unchanged."""
    noun = _NOUN.fullmatch(gold.strip())
    if noun is None or not _is_noun(noun[2]) or answer == gold:
        return gold
    in_words = _WORD.search(answer) or units_of(answer)
    return f"{noun[1]} {noun[2]}" if in_words else noun[1]


def is_named(text: str) -> bool:
    """Whether the text is an equation with letters on its left side."""
    left, equals, _ = text.partition("=")
    return bool(equals) and bool(_letters(left))


def _sides(text: str) -> list[str]:
    """The sides of an equation, or of a chain of them; the text alone if it is a list or another relation."""
    if "=" not in text or _NOT_AN_EQUATION.search(text) or len(split_top(text)) > 1:
        return [text]
    sides = split_top(text, "=")
    is_tuple = brackets(sides[0])[0] and len(split_top(brackets(sides[0])[1])) > 1
    return sides if all(sides) and len(sides) <= _CHAIN and not is_tuple else [text]


def _is_left(side: str, right: str, same: Same) -> bool:
    if NAME.fullmatch(side) or re.fullmatch(ANGLE, side):  # the comparison itself omits a name
        return True
    return _is_formula(side) or same(side, right)


def _is_formula(side: str) -> bool:
    """An expression in two letters, such as `mc^2`, which is no equation for one of them."""
    return len(_letters(side)) > 1


def _letters(text: str) -> set[str]:
    """The distinct letters, a Greek one counted as one."""
    return {letter for letter in _LETTER.findall(text) if not _NO_LETTER.fullmatch(letter)}


def _stated_once(text: str, same: Same) -> str:
    """The value of `0.5 or 1/2`, in one of its spellings; a value that is only repeated is a list, such as `1 or 1`."""
    parts = [part.strip().removesuffix(")") if "(" not in part else part for part in _TWICE.split(text)]
    if len(parts) != 2 or any(not part or "," in part or "=" in part for part in parts):
        return text
    one, other = parts
    return one if spelling(one) != spelling(other) and same(one, other) else text


def _is_noun(words: str) -> bool:
    return all(len(word) > 1 for word in words.split()) and bool(re.search(r"[aeiou]", words)) and len(words) > 2
