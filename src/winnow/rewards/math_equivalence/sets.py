r"""Conditions and sets of real numbers: "or" and "and" between conditions, set builders, all real numbers.

A set builder over the reals is written as intervals, `\{x : 1 < x < 4\}` as `(1,4)`. One over another domain is not,
nor one over a letter that usually is an integer: the integers in (1,4) are another set. A condition alone is no set.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from fractions import Fraction

from winnow.rewards.math_equivalence import expression
from winnow.rewards.math_equivalence.latex import brackets, split_top

_RELATION = re.compile(r"\\(?:le|ge|ne|lt|gt)(?![a-zA-Z])|[<>]")
_JOINED = re.compile(r"\s(or|and)\s")
_SIDES = re.compile(r"(\\(?:le|ge|ne|lt|gt)(?![a-zA-Z])|[<>=])")
_BUILDER = re.compile(r"(?P<left>[^|:]*?)(?:\||\\mid(?![a-zA-Z])|\\colon(?![a-zA-Z])|:)(?P<conditions>[^|:]*)")
_BLACKBOARD = r"\\mathbb\s*\{?\s*R\s*\}?|\\R(?![a-zA-Z])"
_REALS = rf"(?:{_BLACKBOARD}|R(?![a-zA-Z]))"
_LETTER = re.compile(rf"\s*([a-zA-Z])\s*(?:\\in\s*(?P<domain>{_REALS}))?\s*")
_IN_REALS = re.compile(rf"([a-zA-Z])\s*\\in\s*{_REALS}|([a-zA-Z]) is (?:a )?real(?: number)?|\s*")
_ALL_REALS = re.compile(
    rf"(?:[a-zA-Z]\s*\\in\s*{_REALS}|(?:[a-zA-Z]\s*(?:\\in|=|is|can be)\s*)?(?:(?:the )?set of )?"
    rf"(?:{_BLACKBOARD}|all (?:the )?(?:real numbers|reals|real values)(?: (?:of )?[a-zA-Z])?|all real [a-zA-Z]))"
    r"(?:\s*(?:\\setminus|\\backslash|-|except(?: for)?|other than)\s*(?P<hole>\S.*))?",
    re.IGNORECASE,
)
_INTEGERS = frozenset("ijklmnpqN")  # without a domain, these letters may be integers
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", "=": "=", r"\ne": r"\ne"}
_PLAIN = {r"\lt": "<", r"\gt": ">"}


def joined_otherwise(answer: str, gold: str) -> bool:
    r"""Whether conditions are joined by "or" on one side and by "and" on the other.

    A comma means "and" unless no number satisfies both conditions: `x<1, x>3` means "or". Solutions of one letter
    (`x=1 or x=3`) are a list, and joined by any of them.
    """
    mine, theirs = _connectives(answer), _connectives(gold)
    if not (mine or theirs) or mine == theirs or not (_is_conditions(answer) and _is_conditions(gold)):
        return False
    if mine and theirs:
        return True
    joined, listed = (mine, gold) if mine else (theirs, answer)
    return joined != {"or" if _are_disjoint(listed) else "and"}


def _connectives(text: str) -> set[str]:
    return set(_JOINED.findall(text))


def _is_conditions(text: str) -> bool:
    """Whether the parts are inequalities, or values of different letters."""
    parts = split_top(_JOINED.sub(",", text))
    lefts = {part.partition("=")[0].strip() for part in parts}
    return len(parts) > 1 and (all(map(_RELATION.search, parts)) or (len(lefts) > 1 and all("=" in p for p in parts)))


def _are_disjoint(text: str) -> bool:
    """Whether the text is two conditions on one letter that no number satisfies: `x<1, x>3`."""
    letters = set(re.findall(r"(?<![\\a-zA-Z])[a-zA-Z](?![a-zA-Z])", text))
    letter = letters.pop() if len(letters) == 1 else ""
    rays = _rays([_interval(part, letter) for part in split_top(text)])
    return rays is not None and rays[0] > rays[2]


def as_intervals(text: str) -> str:
    r"""A set builder over the reals, or "all real numbers", as intervals; another text unchanged."""
    text = text.strip()
    opening, inside, _ = brackets(text)
    if opening == "\\{" and "\\{" not in inside and (builder := _BUILDER.fullmatch(inside)):
        return _built(builder["left"], builder["conditions"]) or text
    everything = _ALL_REALS.fullmatch(text)
    return text if everything is None else _punctured(everything["hole"]) or text


def _built(left: str, conditions: str) -> str | None:
    letter = _LETTER.fullmatch(left)
    if letter is None:
        return None
    over_reals = letter["domain"] is not None
    parts = split_top(re.sub(r"\sand\s", ",", conditions))
    domains = [part for part in parts if (match := _IN_REALS.fullmatch(part)) and letter[1] in (match[1], match[2])]
    parts = [part for part in parts if part not in domains and part.strip()]
    if letter[1] in _INTEGERS and not (over_reals or domains):
        return None
    if not parts:
        return r"(-\infty,\infty)" if domains else None
    if len(parts) > 1:
        return _intersection([_interval(part, letter[1]) for part in parts])
    alternatives = re.split(r"\sor\s", parts[0])
    intervals = [_interval(part, letter[1]) for part in alternatives]
    return None if None in intervals else r" \cup ".join(map(str, intervals))


def _interval(condition: str, letter: str) -> str | None:
    r"""`a < x \le b` as `(a,b]`, `x \ne a` as two intervals; None for another condition."""
    values, signs = rising(condition)
    bounds = [value for value in values if value != letter]
    if values.count(letter) != 1 or not all(bounds) or any(letter in re.sub(r"\\[a-zA-Z]+", "", b) for b in bounds):
        return None
    if len(values) == 2:
        sign = signs[0] if values[0] == letter else _FLIPPED[signs[0]]
        return _ray(sign, bounds[0])
    if len(values) != 3 or values[1] != letter or not set(signs) <= {"<", r"\le"}:
        return None
    low = "(" if signs[0] == "<" or "infty" in values[0] else "["
    high = ")" if signs[1] == "<" or "infty" in values[2] else "]"
    return f"{low}{values[0]},{values[2]}{high}"


def rising(condition: str) -> tuple[list[str], list[str]]:
    r"""The sides of a condition and the signs between them, `5 > x \ge 3` as `3 \le x < 5`."""
    sides = [part.strip() for part in _SIDES.split(condition)]
    values, signs = sides[::2], [_PLAIN.get(sign, sign) for sign in sides[1::2]]
    if signs and set(signs) <= {">", r"\ge"}:
        return values[::-1], [_FLIPPED[sign] for sign in signs[::-1]]
    return values, signs


def _ray(sign: str, bound: str) -> str | None:
    return {
        "<": rf"(-\infty,{bound})",
        r"\le": rf"(-\infty,{bound}]",
        ">": rf"({bound},\infty)",
        r"\ge": rf"[{bound},\infty)",
        r"\ne": rf"(-\infty,{bound}) \cup ({bound},\infty)",
    }.get(sign)


def _intersection(intervals: list[str | None]) -> str | None:
    """Of one ray to the left and one to the right with numbers as ends; or of holes in the line; None for others."""
    known = [interval for interval in intervals if interval is not None]
    if len(known) < len(intervals):
        return None
    if all(r"\cup" in interval for interval in known):
        return _punctured(",".join(split_top(brackets(one.partition(r" \cup ")[0])[1])[1] for one in known))
    rays = _rays(known)
    return f"{rays[1]},{rays[3]}" if rays is not None and rays[0] < rays[2] else None


def _rays(intervals: Sequence[str | None]) -> tuple[Fraction, str, Fraction, str] | None:
    """(lower bound, its text with its bracket, upper bound, its text) of one ray to the left and one to the right."""
    left = [one for one in intervals if one and one.startswith(r"(-\infty,") and r"\cup" not in one]
    right = [one for one in intervals if one and one.endswith(r",\infty)") and r"\cup" not in one]
    if not (len(left) == len(right) == 1 and len(intervals) == 2):
        return None
    high, low = left[0].removeprefix(r"(-\infty,"), right[0].removesuffix(r",\infty)")
    top, bottom = expression.number(high[:-1]), expression.number(low[1:])
    return None if top is None or bottom is None else (bottom, low, top, high)


def _punctured(holes: str | None) -> str | None:
    r"""The real line without the numbers of a list, `\{1, 2\}`, as intervals."""
    if holes is None:
        return r"(-\infty,\infty)"
    inside = brackets(holes.strip())[1] if holes.strip().startswith("\\{") else holes
    texts = split_top(re.sub(r"\s(?:and|or)\s", ",", inside))
    numbers = sorted((number, text) for text in texts if (number := expression.number(text)) is not None)
    if len(numbers) < len(texts) or len({number for number, _ in numbers}) < len(texts):
        return None
    ends = [r"-\infty", *(text for _, text in numbers), r"\infty"]
    return r" \cup ".join(f"({low},{high})" for low, high in itertools.pairwise(ends))
