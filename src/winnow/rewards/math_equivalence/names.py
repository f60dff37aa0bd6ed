r"""Names and words: values with a name (`m=2, n=3`), tuples of names (`(x,y)=(2,3)`), and letters that are no product.

Values are compared by name if both sides have names. Against bare values the order decides, if the names are distinct
and not one letter with indices: `m=2, n=3` is `2, 3` and not `3, 2`, and `x=2, x=3` is both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from winnow.rewards.math_equivalence.latex import brackets, split_top
from winnow.rewards.math_equivalence.signs import ANGLE

NAME = re.compile(rf"\\?[a-zA-Z]+(?:_(?:\w+|\{{[\w,]+\}}))?(?:\([a-z](?:,[a-z])*\))?|{ANGLE}")
_CAPITALS = re.compile(r"[A-Z](?:\s?[A-Z])+")
_IN_TEXT = re.compile(r"[\s$]*\\(?:text(?:bf|it|rm)?|mbox|math(?:rm|bf|it))\s*\{\s*([a-zA-Z]{2,})\s*\}[\s$.]*")
_LETTERS = re.compile(r"[\s$]*([a-zA-Z]{2,})[\s$.]*")
_COORDINATE = re.compile(r"\\?[a-zA-Z]+(?:_\w+)?")
_CONNECTIVE = re.compile(r"\s*,?\s(?:or|and)\s")

_DOMAIN = re.compile(
    r"[\s,;(]+(?:(?:where|with|for|for all|for any) )?([a-zA-Z])\s*\\in\s*\\mathbb\s*\{?\s*Z\s*\}?\s*\)?\s*$"
)
_RELATED = re.compile(r"[<>|:]|\\(?:le|ge|ne|lt|gt|in|mid)(?![a-zA-Z])")
_ARGUMENT = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]\(([a-z])\)\s*=")
_KEPT = r"\\[a-zA-Z]+|(?<![a-zA-Z])(?:or|and|[a-zA-Z]{3,})(?![a-zA-Z])"


def with_one_parameter(answer: str, gold: str) -> tuple[str, str]:
    r"""Both texts without the domain of an integer parameter (`k \in \mathbb{Z}`), and with the gold's letter for the
    parameter, or for the argument of functions: `f(n)=n` is `f(x)=x`.
    """
    (answer, a), (gold, g) = _without_domain(answer), _without_domain(gold)
    if not (a or g):
        a, g = _argument(answer), _argument(gold)
    if a and g and a != g and g not in _free(answer):
        answer = re.sub(rf"{_KEPT}|{a}", lambda found: g if found[0] == a else found[0], answer)
    return answer, gold


def _without_domain(text: str) -> tuple[str, str]:
    domain = _DOMAIN.search(text) if r"\in" in text else None
    rest = text[: domain.start()] if domain else ""
    fine = domain and domain[1] in _free(rest) and rest.count("(") == rest.count(")") and not _RELATED.search(rest)
    return (rest, domain[1]) if domain and fine else (text, "")


def _argument(text: str) -> str:
    letters = set(_ARGUMENT.findall(text))
    return letters.pop() if len(letters) == 1 else ""


def _free(text: str) -> set[str]:
    return set(re.sub(r"\\[a-zA-Z]+", " ", text))


def capitals(answer: str, gold: str) -> bool | None:
    """False for two whole answers of capitals that are not the same text: `IX` is not `XI`, `AB` is not `BA`."""
    if not (_CAPITALS.fullmatch(answer.strip()) and _CAPITALS.fullmatch(gold.strip())):
        return None
    return "".join(answer.split()) == "".join(gold.split())


def same_word(answer: str, gold: str) -> bool | None:
    r"""Whether two raw texts, one of them in `\text`, are one word: `\text{no}` is not `on`. None without words."""
    mine, theirs = _IN_TEXT.fullmatch(answer), _IN_TEXT.fullmatch(gold)
    if not (mine or theirs):
        return None
    mine, theirs = mine or _LETTERS.fullmatch(answer), theirs or _LETTERS.fullmatch(gold)
    if not (mine and theirs) or mine[1] == theirs[1]:
        return None
    if mine[1].lower() != theirs[1].lower():
        return False
    return True if mine[1][1:] == theirs[1][1:] and mine[1][1:].islower() else None


def in_order(mine: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether one list has a distinct name for every value, and the other has none."""
    a, g = _names(mine), _names(theirs)
    named = g if not any(a) else a if not any(g) else []
    if not named or not all(named) or len(set(named)) < len(named):
        return False
    return len({name.partition("_")[0] for name in named}) > 1


def _names(values: Sequence[str]) -> list[str]:
    """The name on the left of each value; empty without one."""
    lefts = [left.strip() if equals else "" for left, equals, _ in (value.partition("=") for value in values)]
    return [left if NAME.fullmatch(left) else "" for left in lefts]


def without_tuples_of_names(answer: str, gold: str) -> tuple[str, str] | None:
    r"""Both texts without a tuple of names on the left, `(x,y)=(2,3)`, and with values in the order of the names.

    A tuple is also the list of its named values (`x=2, y=3`). None if both sides have names, and not the same ones.
    """
    if not any(re.search(r"\)\s*(?:=|\\in(?![a-zA-Z]))", text) for text in (answer, gold)):
        return answer, gold
    (mine, a), (theirs, g) = _sorted(answer), _sorted(gold)
    if mine and theirs:
        return (a, g) if mine == theirs else None
    if mine or theirs:
        named, values, other = (mine, a, gold) if mine else (theirs, g, answer)
        if all(_names(split_top(_CONNECTIVE.sub(",", other)))):
            listed = ",".join(f"{n}={v}" for n, v in zip(named, split_top(brackets(values)[1]), strict=False))
            return (listed, gold) if mine else (answer, listed)
    return a, g


def _sorted(text: str) -> tuple[tuple[str, ...], str]:
    r"""(names in alphabetical order, the tuples of values in that order) of `(y,x)=(2,3)` or `(y,x) \in \{(2,3)\}`."""
    names: tuple[str, ...] = ()
    tuples: list[str] = []
    parts = split_top(_CONNECTIVE.sub(",", text))
    left, member, right = text.partition(r"\in ")
    if member and brackets(right.strip())[0] == "\\{":
        names, parts = _coordinates(left), split_top(brackets(right.strip())[1])
    for part in parts:
        sides = split_top(part, "=")
        if len(sides) == 2:
            here = _coordinates(sides[0])
            if not here or names not in ((), here):
                return (), text
            names = here
        values = split_top(brackets(sides[-1])[1])
        if not names or len(sides) > 2 or brackets(sides[-1])[::2] != ("(", ")") or len(values) != len(names):
            return (), text
        order = sorted(range(len(names)), key=lambda i: (names[i].startswith("\\"), names[i].lower(), names[i]))
        tuples.append("(" + ",".join(values[i] for i in order) + ")")
    listed = ", ".join(tuples)
    in_order = tuple(sorted(names, key=lambda name: (name.startswith("\\"), name.lower(), name)))
    return (in_order, rf"\{{{listed}\}}" if member else listed) if tuples else ((), text)


def _coordinates(text: str) -> tuple[str, ...]:
    opening, inside, closing = brackets(text.strip())
    names = tuple("".join(name.split()) for name in split_top(inside))
    fine = opening == "(" and closing == ")" and len(names) > 1 and len(set(names)) == len(names)
    return names if fine and all(map(_COORDINATE.fullmatch, names)) else ()
