r"""The exact rules of the `math` grader, which decide most pairs of answer and gold without computer algebra.

Every rule returns True (equal), False (different) or None (undecided); `compare` applies them in order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from winnow.rewards.math_equivalence import expression
from winnow.rewards.math_equivalence.latex import brackets, split_top
from winnow.rewards.math_equivalence.units import units_of, without_units

Verdict = bool | None
Decide = Callable[[str, str], Verdict]

_BASE = re.compile(r"(?P<digits>[0-9A-Fa-f]+)\s*_\s*\{?\s*(?:\\?[a-z]*\s*)?(?P<base>\d+(?:\.\d+)?)\s*\}?")
_SCIENTIFIC = re.compile(r"(?<![\w.])(\d+(?:\.\d*)?|\.\d+)[eE]([-+]?\d{1,3})(?![\w.])", re.ASCII)
_IMAGINARY = re.compile(r"(?<=\d)\s*I(?![a-zA-Z_({])")
_NAME = re.compile(r"\\?[a-zA-Z]+(?:_\w)?(?:\([a-z](?:,[a-z])*\))?'?")
_RELATION = re.compile(r"\\(?:le|ge|ne|lt|gt)(?![a-zA-Z])|[<>|]|\\mid(?![a-zA-Z])")
_WORDS = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}")
_MATRIX = re.compile(r"\\begin\{[pbvB]?matrix\}(.*)\\end\{[pbvB]?matrix\}", re.DOTALL)
_FUNCTIONS = frozenset({"sqrt", "sin", "cos", "tan", "log", "exp", "inf", "mod", "begin", "end", "pmatrix", "array"})
_NUMBERS = re.compile(r"\d+(?:\.\d+)?", re.ASCII)


def compare(answer: str, gold: str, single: Decide) -> Verdict:
    """Compare two tidy texts. `single` compares one element without brackets or commas that no rule here decides."""
    if spelling(answer) == spelling(gold):
        return bool(spelling(gold))
    for rule in (units, words, bases):
        if rule(answer, gold) is False:
            return False
    verdict = _equations(without_units(answer), without_units(gold), single)
    if verdict is not None:
        return verdict
    mine, theirs = value(answer), value(gold)
    if spelling(mine) == spelling(theirs):
        return bool(spelling(theirs))
    for structural in (_matrices, _elements, _not_values, _relations, _identity):
        verdict = structural(mine, theirs, single)
        if verdict is not None:
            return verdict
    return single(mine, theirs)


def spelling(text: str) -> str:
    """A text without its spaces."""
    return "".join(text.split())


def units(answer: str, gold: str) -> Verdict:
    """Units may be left out, not exchanged; a percent sign changes the value, so it may not be added."""
    mine, theirs = units_of(answer), units_of(gold)
    added_percent = "percent" in mine and "percent" not in theirs
    return False if added_percent or (mine and theirs and mine != theirs) else None


def words(answer: str, gold: str) -> Verdict:
    """Words belong to an answer: `42 apples` is not 42, `north` is not `south`."""
    return None if _words(answer) == _words(gold) else False


def bases(answer: str, gold: str) -> Verdict:
    """`4210_7` is not `4210_8`, and not 4210."""
    mine, theirs = _based(answer), _based(gold)
    return None if mine == theirs else False


def value(text: str) -> str:
    r"""Without units, `2e5` as a product, `2I` as `2i`; no name left of `x = 5`, `f(x) = 5`, `x \in [0, 1]`."""
    text = _SCIENTIFIC.sub(r"\1\\times 10^{\2}", _IMAGINARY.sub("i", without_units(text)))
    left, equals, right = text.partition("=")
    if not equals:
        left, equals, right = text.partition(r"\in ")
    named = equals and "=" not in right and "," not in left and _NAME.fullmatch(left.strip())
    return right.strip() if named else text


def _equations(answer: str, gold: str, single: Decide) -> Verdict:
    """The same equation up to a constant factor, or side by side; `y = 2x` and `f(x) = 2x` by their right sides."""
    mine, theirs = split_top(answer, "="), split_top(gold, "=")
    if not (len(mine) == len(theirs) == 2) or "," in mine[0] + theirs[0] or len(split_top(answer)) > 1:
        return None
    if ")" in mine[0] + theirs[0] and _NAME.fullmatch(mine[0]) and _NAME.fullmatch(theirs[0]):
        return None
    factor = _one_equation(mine, theirs)
    if factor is not None:
        return factor
    return any(
        compare(mine[0], left, single) is True and compare(mine[1], right, single) is True
        for left, right in (theirs, theirs[::-1])
    )


def _not_values(answer: str, gold: str, single: Decide) -> Verdict:
    """An equation is never equal to a value: `43 = 42` is not 42."""
    return False if "=" in answer or "=" in gold else None


def _relations(answer: str, gold: str, single: Decide) -> Verdict:
    r"""Inequalities and set-builders differ when their numbers do: `-2 \le x` and `-20 \le x`."""
    mine, theirs = _RELATION.findall(answer), _RELATION.findall(gold)
    if not (mine and theirs):
        return None
    return None if sorted(_NUMBERS.findall(answer)) == sorted(_NUMBERS.findall(gold)) else False


def _identity(answer: str, gold: str, single: Decide) -> Verdict:
    """Numbers and expressions by exact evaluation; None where a text is outside the language of `expression.py`."""
    try:
        a, g = expression.read(answer), expression.read(gold)
        verdict = expression.same(a, g)
    except expression.Unreadable:
        return None
    constants = {"i", "e"} & (a.letters() | g.letters())  # letters here, numbers to computer algebra
    return None if verdict is False and constants else verdict


def _matrices(answer: str, gold: str, single: Decide) -> Verdict:
    """Entry by entry, rows and columns in place."""
    mine, theirs = _MATRIX.fullmatch(answer), _MATRIX.fullmatch(gold)
    if not (mine and theirs):
        return None
    a, g = ([row.split("&") for row in match[1].strip().removesuffix(r"\\").split(r"\\")] for match in (mine, theirs))
    if [len(row) for row in a] != [len(row) for row in g]:
        return False
    pairs = [pair for rows in zip(a, g, strict=True) for pair in zip(*rows, strict=True)]
    return all(compare(x.strip(), y.strip(), single) is True for x, y in pairs)


def _one_equation(mine: Sequence[str], theirs: Sequence[str]) -> Verdict:
    try:
        a, g = (expression.read(f"({left})-({right})") for left, right in (mine, theirs))
        if not a.letters() or a.letters() != g.letters():
            return None if not (a.letters() or g.letters()) else False
        return expression.proportional(a, g)
    except expression.Unreadable:
        return None


def _elements(answer: str, gold: str, single: Decide) -> Verdict:
    """Tuples and intervals in order and with their brackets; sets, bare lists and unions in any order."""
    mine, theirs = _listed(answer), _listed(gold)
    a_open, a_inside, a_close = brackets(answer)
    g_open, g_inside, g_close = brackets(gold)
    if len(mine) == len(theirs) == 1 and (a_open or g_open):
        mine, theirs = _listed(a_inside), _listed(g_inside)
        if len(mine) == len(theirs) == 1 and "\\{" not in (a_open, g_open):
            return None if (a_inside, g_inside) == (answer, gold) else compare(a_inside, g_inside, single)
        if _is_builder(a_inside) or _is_builder(g_inside):
            return _relations(answer, gold, single)
        if (a_open, a_close) != (g_open, g_close):
            return False
        ordered = a_open != "\\{"
    elif len(mine) == len(theirs) == 1:
        return None
    else:
        ordered = False
    return _matched(mine, theirs, ordered, single)


def _matched(mine: list[str], theirs: list[str], ordered: bool, single: Decide) -> bool:
    if len(mine) != len(theirs) or len(theirs) > 50:
        return False
    if ordered:
        return all(compare(a, g, single) is True for a, g in zip(mine, theirs, strict=True))
    left = list(theirs)
    for a in mine:
        found = next((g for g in left if compare(a, g, single) is True), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _listed(text: str) -> list[str]:
    r"""The elements of a list: commas, `1 or 2`, unions, and both signs of `1 \pm 2`."""
    parts = split_top(re.sub(r"\s(?:or|and)\s|\\cup(?![a-zA-Z])", ",", text))
    return [signed for part in parts for signed in _both_signs(part)]


def _both_signs(text: str) -> list[str]:
    if r"\pm" not in text:
        return [text]
    return [text.replace(r"\pm", a).replace(r"\mp", b) for a, b in (("+", "-"), ("-", "+"))]


def _is_builder(inside: str) -> bool:
    return bool(re.search(r"\||\\mid(?![a-zA-Z])|:", inside))


def _words(text: str) -> list[str]:
    return sorted(word.lower() for word in _WORDS.findall(without_units(text)) if word.lower() not in _FUNCTIONS)


def _based(text: str) -> list[tuple[str, str]]:
    return sorted((match["digits"].lstrip("0").upper(), match["base"]) for match in _BASE.finditer(text))
