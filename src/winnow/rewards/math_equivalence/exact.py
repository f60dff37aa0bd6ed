r"""The exact rules of the `math` grader, which decide most pairs of answer and gold without computer algebra.

Every rule returns True (equal), False (different) or None (undecided); `compare` applies them in order. A comparison of
lists compares many elements, so all of its comparisons are counted; beyond the bounds the answer is different.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from winnow.rewards.math_equivalence import expression
from winnow.rewards.math_equivalence.latex import apart, brackets, spelling, split_top
from winnow.rewards.math_equivalence.names import NAME, capitals, in_order
from winnow.rewards.math_equivalence.sets import joined_otherwise, rising
from winnow.rewards.math_equivalence.signs import named, settled
from winnow.rewards.math_equivalence.units import compound, exchanged, units_of, without_units

Verdict = bool | None
Decide = Callable[[str, str], Verdict]

MAX_COMPARISONS = 10_000
MAX_SIGNS = 4  # of both kinds in one element
MAX_UNDECIDED = 4_000  # characters sent to computer algebra

_BASE = re.compile(  # no letters of \lambda_1
    r"(?P<digits>\d[0-9A-Fa-f]*|(?<![a-zA-Z\\])[A-Fa-f][0-9A-Fa-f]*)\s*_\s*\{?\s*(?:\\?[a-z]*\s*)?"
    r"(?P<base>\d+(?:\.\d+)?)\s*\}?"
)
_SCIENTIFIC = re.compile(r"(?<![\w.])(\d+(?:\.\d*)?|\.\d+)[eE]([-+]?\d{1,3})(?![\w.])", re.ASCII)
_IMAGINARY = re.compile(r"(?<=\d)\s*I(?![a-zA-Z_({])")
_RELATION = re.compile(r"\\(?:le|ge|ne|lt|gt)(?![a-zA-Z])|[<>|]|\\mid(?![a-zA-Z])")
_WORDS = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}")
_MATRIX = re.compile(
    r"(?P<factor>-?[^&+-]*?)(?:\\cdot\s*)?\\begin\{(?P<kind>[pvV]matrix)\}(?P<rows>.*)\\end\{(?P=kind)\}", re.DOTALL
)
_PHRASE = re.compile(r"[a-zA-Z]{3,}|[a-zA-Z]{2,}(?: [a-zA-Z]{2,})+")
_PROSE = re.compile(r"(?=.*[a-zA-Z]{2})[a-zA-Z]+(?: [a-zA-Z]+)+")
_CONNECTIVE = re.compile(r"\s(or|and)\s")
_SEPARATOR = re.compile(r"\s*,?\s(?:or|and)\s|\\cup(?![a-zA-Z])")
_NO_WORDS = frozenset(
    ["sqrt", "sin", "cos", "tan", "log", "exp", "inf", "mod", "begin", "end", "pmatrix", "array", "and"]
)
_NUMBERS = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_SIGN = re.compile(r"\\(pm|mp)(?![a-zA-Z])")


class _TooMuch(Exception):
    """A bound on the comparisons is reached."""


@dataclass(slots=True)
class _Work:
    """The work of one comparison so far, its elements included."""

    decide: Decide
    comparisons: int = 0
    undecided: int = 0

    def count(self) -> None:
        self.comparisons += 1
        if self.comparisons > MAX_COMPARISONS:
            raise _TooMuch

    def single(self, answer: str, gold: str) -> Verdict:
        self.undecided += len(answer) + len(gold)
        if self.undecided > MAX_UNDECIDED:
            raise _TooMuch
        return self.decide(answer, gold)


def compare(answer: str, gold: str, single: Decide) -> Verdict:
    """Compare two tidy texts. `single` compares elements without brackets or commas that the rules do not decide."""
    texts = named(answer, gold)
    try:
        return texts is not None and _compare(*texts, _Work(single), whole=True)
    except _TooMuch:
        return False


def _compare(answer: str, gold: str, work: _Work, *, whole: bool = False) -> Verdict:
    work.count()
    if spelling(answer) == spelling(gold):
        return bool(spelling(gold))
    for rule in (_compounds, units, words, bases):
        verdict = rule(answer, gold)
        if verdict is not None:
            return verdict
    texts = settled(answer, gold, whole=whole)
    if texts is None or joined_otherwise(answer, gold):
        return False
    answer, gold = texts
    verdict = _equations(without_units(answer), without_units(gold), work)
    if verdict is not None:
        return verdict
    mine, theirs = value(answer), value(gold)
    if spelling(mine) == spelling(theirs):
        return bool(spelling(theirs))
    if capitals(mine, gold) is False:
        return False
    for structural in (_matrices, _elements, _apart, _ratios, _not_values, _relations, _identity):
        verdict = structural(mine, theirs, work)
        if verdict is not None:
            return verdict
    return work.single(mine, theirs)


def units(answer: str, gold: str) -> Verdict:
    """Units may be omitted, but not exchanged; a percent sign changes the value, so it may not be added to a number."""
    added_percent = "percent" in units_of(answer) - units_of(gold)
    return False if added_percent or exchanged(answer, gold) else None


def words(answer: str, gold: str) -> Verdict:
    """Words belong to an answer: `I have 42` is not 42, `north` is not `south`, `A or B` is not `A and B` in words."""
    mine, theirs = _words(answer), _words(gold)
    if mine != theirs:
        return False
    if mine and _PHRASE.fullmatch(answer) and answer[:1].lower() + answer[1:] == gold[:1].lower() + gold[1:]:
        return True  # East
    joined = [set(_CONNECTIVE.findall(text)) for text in (answer, gold)]
    return False if mine and all(joined) and joined[0] != joined[1] else None


def bases(answer: str, gold: str) -> Verdict:
    """`4210_7` is not `4210_8`, and not 4210."""
    mine, theirs = _based(answer), _based(gold)
    return None if mine == theirs else False


def value(text: str) -> str:
    r"""The text without units and without a name on the left (`x = 5`, `f(x) = 5`, `x \in [0, 1]`), or on the right
    of a number (`5 = x`). `2e5` becomes a product, and `2I` becomes `2i`.
    """
    text = _SCIENTIFIC.sub(r"\1\\times 10^{\2}", _IMAGINARY.sub("i", without_units(text)))
    left, equals, right = text.partition("=")
    if equals and NAME.fullmatch(right.strip()) and expression.number(left) is not None:
        return left.strip()
    if not equals:
        left, equals, right = text.partition(r"\in ")
    named = equals and "=" not in right and "," not in left and NAME.fullmatch(left.strip())
    return right.strip() if named else text


def _compounds(answer: str, gold: str) -> Verdict:
    """`5 hours 30 minutes`: the same numbers of the same units. Units are not converted."""
    mine, theirs = (sorted((Fraction(number), of) for number, of in compound(text) or ()) for text in (answer, gold))
    return mine == theirs if mine or theirs else None


def _apart(answer: str, gold: str, work: _Work) -> Verdict:
    """Numbers side by side are no value, so they equal only themselves: `7 8` is neither 78 nor 56."""
    return False if apart(answer) or apart(gold) else None


def _ratios(answer: str, gold: str, work: _Work) -> Verdict:
    """Ratios and times part by part: `1:2` is not 1/2, for odds of 1:2 are 1/3; `2:30` is not `1:15`, a time."""
    mine, theirs = split_top(answer, ":"), split_top(gold, ":")
    if len(mine) == len(theirs) == 1:
        return None
    minutes = [re.fullmatch(r"0\d", parts[-1]) is not None for parts in (mine, theirs)]  # 3:04 is a time, 3:4 a ratio
    return minutes[0] == minutes[1] and _matched(mine, theirs, True, work)


def _equations(answer: str, gold: str, work: _Work) -> Verdict:
    """The same equation up to a constant factor, or side by side; `y = 2x` and `f(x) = 2x` by their right sides."""
    mine, theirs = split_top(answer, "="), split_top(gold, "=")
    if not (len(mine) == len(theirs) == 2) or "," in mine[0] + theirs[0] or len(split_top(answer)) > 1:
        return None
    if ")" in mine[0] + theirs[0] and NAME.fullmatch(mine[0]) and NAME.fullmatch(theirs[0]):
        return None
    factor = _one_equation(mine, theirs)
    if factor is not None:
        return factor
    return any(
        _compare(mine[0], left, work) is True and _compare(mine[1], right, work) is True
        for left, right in (theirs, theirs[::-1])
    )


def _not_values(answer: str, gold: str, work: _Work) -> Verdict:
    """An equation is never equal to a value: `43 = 42` is not 42."""
    return False if "=" in answer or "=" in gold else None


def _relations(answer: str, gold: str, work: _Work) -> Verdict:
    r"""Inequalities and set-builders differ if their numbers do (`-2 \le x`, `-20 \le x`). `5>x>3` is `3<x<5`."""
    if not (_has_relation(answer) and _has_relation(gold)):
        return None
    (a, a_signs), (g, g_signs) = rising(answer), rising(gold)
    if len(a) > 1 and a_signs == g_signs and all(_compare(x, y, work) is True for x, y in zip(a, g, strict=True)):
        return True
    return None if sorted(_NUMBERS.findall(answer)) == sorted(_NUMBERS.findall(gold)) else False


def _has_relation(text: str) -> bool:
    """Bars in pairs are absolute values, and no relations."""
    signs = _RELATION.findall(text)
    return any(sign != "|" for sign in signs) or len(signs) % 2 == 1


def _identity(answer: str, gold: str, work: _Work) -> Verdict:
    """Numbers and expressions by exact evaluation; None if a text is outside the language of `expression.py`."""
    if _PROSE.fullmatch(answer):
        return False  # the spellings differ, and words are no factors
    try:
        a, g = expression.read(answer), expression.read(gold)
        verdict = expression.same(a, g)
    except expression.Unreadable:
        return None
    constants = {"i", "e"} & (a.letters() | g.letters())  # letters here, numbers to computer algebra
    return None if verdict is False and constants else verdict


def _matrices(answer: str, gold: str, work: _Work) -> Verdict:
    """Matrices of equal shape are compared entry by entry, each at its own place and times its matrix's factor."""
    mine, theirs = _MATRIX.fullmatch(answer), _MATRIX.fullmatch(gold)
    if not (mine and theirs) or mine["kind"] != theirs["kind"]:
        return None
    if mine["kind"] != "pmatrix" and (mine["factor"] or theirs["factor"]):
        return None  # a determinant is not multiplied by entries
    a, g = _rows(mine), _rows(theirs)
    if [len(row) for row in a] != [len(row) for row in g]:
        return False
    pairs = [pair for rows in zip(a, g, strict=True) for pair in zip(*rows, strict=True)]
    return all(_compare(x.strip(), y.strip(), work) is True for x, y in pairs)


def _rows(matrix: re.Match[str]) -> list[list[str]]:
    rows = [row.split("&") for row in matrix["rows"].strip().removesuffix(r"\\").split(r"\\")]
    factor = matrix["factor"].strip()
    factor = "-1" if factor == "-" else factor
    return [[f"({factor})({entry})" for entry in row] for row in rows] if factor else rows


def _one_equation(mine: Sequence[str], theirs: Sequence[str]) -> Verdict:
    try:
        a, g = (expression.read(f"({left})-({right})") for left, right in (mine, theirs))
        if not a.letters() or a.letters() != g.letters():
            return None if not (a.letters() or g.letters()) else False
        sides = (theirs, theirs[::-1])
        if len(g.letters()) == 1 and any(NAME.fullmatch(x) and expression.number(y) is not None for x, y in sides):
            return None  # 2x+3=13 is the problem of x=5, and not its answer
        return expression.proportional(a, g)
    except expression.Unreadable:
        return None


def _elements(answer: str, gold: str, work: _Work) -> Verdict:
    """Tuples and intervals in order and with their brackets; sets, bare lists and unions in any order."""
    mine, theirs = _listed(_without_braces(answer, gold)), _listed(_without_braces(gold, answer))
    a_open, a_inside, a_close = brackets(answer)
    g_open, g_inside, g_close = brackets(gold)
    if len(mine) == len(theirs) == 1 and (a_open or g_open):
        mine, theirs = _listed(a_inside), _listed(g_inside)
        if len(mine) == len(theirs) == 1 and "\\{" not in (a_open, g_open):
            return None if (a_inside, g_inside) == (answer, gold) else _compare(a_inside, g_inside, work)
        if _is_builder(a_inside) or _is_builder(g_inside):
            return _relations(answer, gold, work)
        if (a_open, a_close) != (g_open, g_close):
            return False
        ordered = a_open != "\\{"
    elif len(mine) == len(theirs) == 1:
        return None
    else:
        ordered = in_order(mine, theirs)
    return _matched(mine, theirs, ordered, work)


def _without_braces(text: str, other: str) -> str:
    r"""The elements of a set, if the other text is a list without brackets: `\{1,2\}` for `1,2`."""
    opening, inside, _ = brackets(text)
    return inside if opening == "\\{" and "\\cup" not in other and len(_listed(other)) > 1 else text


def _matched(mine: list[str], theirs: list[str], ordered: bool, work: _Work) -> bool:
    if len(mine) != len(theirs) or len(theirs) > 50:
        return False
    if ordered:
        return all(_compare(a, g, work) is True for a, g in zip(mine, theirs, strict=True))
    left = list(theirs)
    several_names = len({_function(g) for g in theirs}) > 1
    for a in mine:
        alike = [g for g in left if not several_names or _function(a) in ("", _function(g))]
        alike.sort(key=lambda g: spelling(g) != spelling(a))  # stable: the likely ones first
        partner = next((g for g in alike if _compare(a, g, work) is True), None)
        if partner is None:
            return False
        left.remove(partner)
    return True


def _listed(text: str) -> list[str]:
    r"""The elements of a list: commas, `1 or 2`, unions, and both signs of `1 \pm 2`."""
    parts = split_top(_SEPARATOR.sub(",", text))
    return [signed for part in parts for signed in _both_signs(part)]


def _both_signs(text: str) -> list[str]:
    r"""In a tuple and beside `\mp`, signs are chosen together, else each for itself: `\pm 1 \pm 2` are four numbers."""
    signs = _SIGN.findall(text)
    if not 0 < len(signs) <= MAX_SIGNS or brackets(text)[0] == "\\{":
        return [text]
    if "mp" in signs or brackets(text)[0]:
        choices = [tuple(a if sign == "pm" else b for sign in signs) for a, b in ("+-", "-+")]
    else:
        choices = list(itertools.product("+-", repeat=len(signs)))
    return [_signed(text, iter(choice)) for choice in choices]


def _signed(text: str, choice: Iterator[str]) -> str:
    return _SIGN.sub(lambda sign: next(choice), text)


def _function(text: str) -> str:
    """The name of the function that a text defines, such as `f` in `f(x) = 2x`; empty without one."""
    left, equals, _ = text.partition("=")
    return left.partition("(")[0].strip() if equals and NAME.fullmatch(left.strip()) and "(" in left else ""


def _is_builder(inside: str) -> bool:
    return bool(re.search(r"\||\\mid(?![a-zA-Z])|:", inside))


def _words(text: str) -> list[str]:
    return sorted(word.lower() for word in _WORDS.findall(without_units(text)) if word.lower() not in _NO_WORDS)


def _based(text: str) -> list[tuple[str, str]]:
    """Numerals with a base."""
    found = [(match["digits"], match["base"]) for match in _BASE.finditer(text)]
    return sorted((digits.lstrip("0").upper(), base) for digits, base in found if _is_numeral(digits, float(base)))


def _is_numeral(digits: str, base: float) -> bool:
    """Not `a_{20}` and `2a_1`: a small letter alone, or one that is no digit of the base, belongs to a name."""
    if len(digits) == 1 and digits.islower():
        return False
    return digits.isdigit() or all(int(digit, 16) < base for digit in digits)
