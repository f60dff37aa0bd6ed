r"""Notations in one spelling: the syntax of sympy, binomials as `C_n^k`, and vectors in i, j, k.

`common` rewrites both texts. A vector in i, j, k is written as a tuple if the other side is a tuple or a column.
"""

from __future__ import annotations

import math
import re

from winnow.rewards.math_equivalence.latex import brackets, depths, split_top

_INTEGER = r"\s*(?:\{\s*(\d{1,4})\s*\}|(\d{1,4}))\s*"
_BINOMIAL = re.compile(
    rf"(?<![a-zA-Z\\])C\s*(?:_{_INTEGER}\^{_INTEGER}|\^{_INTEGER}_{_INTEGER})(?![\d.])"
    rf"|(?:\{{\s*\}}\s*|(?<![\w)}}]))[_^]{_INTEGER}C\s*_{_INTEGER}(?![\d.])"
)
_CHOOSE = re.compile(
    r"(?P<letter>(?<![\\a-zA-Z_^{])[a-zA-Z]\s?)?\\binom\s*\{\s*(?P<top>\d{1,4})\s*\}\s*\{\s*(?P<bottom>\d{1,4})\s*\}"
)
MAX_BINOMIAL = 1_000  # 300 digits
_SYMPY = re.compile(r"\*|(?<![a-zA-Z\\])(?:oo(?![a-zA-Z])|(?:a(?:sin|cos|tan)|Rational|binomial|Abs)\()")
_WORDS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<![a-zA-Z\\])oo(?![a-zA-Z])", r"\\infty "),
        (r"\\?(?<![a-zA-Z])a(sin|cos|tan)(?=\s*\()", r"\\arc\1"),
        (r"(?<![a-zA-Z\\])Rational\((-?\d+), ?(\d+)\)", r"\\frac{\1}{\2}"),
        (r"(?<![a-zA-Z\\])Abs\(([^()]*)\)", r"|\1|"),
        (r"(?<![a-zA-Z\\])binomial\((\w+), ?(\w+)\)", r"\\binom{\1}{\2}"),
    )
)
_UNIT = re.compile(r"(?<![a-z\\])I(?![a-z_(])")  # 3*I; in V = I*R it is a letter, and in V = IR then, too
_LOG = re.compile(r"\\log(?=\s*\()")  # natural in sympy, and of an unknown base elsewhere
_JOINED = re.compile(r"\s*\\(lor|vee|land|wedge)(?![a-zA-Z])\s*")
_RELATION = re.compile(r"[<>=]|\\[lgn]e(?![a-zA-Z])")
_PI = re.compile(r"(?<![a-zA-Z\\])pi(?![a-zA-Z])")
_ROOT = re.compile(r"\\?(?<![a-zA-Z])sqrt\s*\(")
_POWER = re.compile(r"\*\*\s*")
_EXPONENT = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\\?[a-zA-Z]+)")

_TUPLE = re.compile(r"\\begin\{pmatrix\}(?P<rows>[^{}]*(?:\{[^{}]*\}[^{}]*)*)\\end\{pmatrix\}")
_ANGLES = re.compile(r"\\langle(?![a-zA-Z])(.*)\\rangle")
_ACCENT = re.compile(
    r"\\(?:hat|vec|boldsymbol|bm|bar|overrightarrow|widehat|mathbf|mathrm)\s*\{?\s*(?:\\mathbf\s*)?\\?([ijk])(?:math)?\s*\}?"
)
_TERM = re.compile(r"(?P<sign>[-+]?)(?P<factor>[^ijk]*)(?P<axis>[ijk])(?P<below>/\d+)?")


def common(answer: str, gold: str) -> tuple[str, str]:
    """Both tidy texts in the notations that the other rules read."""
    mine, theirs = _SYMPY.search(answer), _SYMPY.search(gold)
    answer, gold = _plain(answer), _plain(gold)
    if mine or theirs:
        answer, gold = _UNIT.sub("i", answer), _UNIT.sub("i", gold)
    if mine and r"\ln" in gold:
        answer = _LOG.sub(r"\\ln", answer)
    if theirs and r"\ln" in answer:
        gold = _LOG.sub(r"\\ln", gold)
    angles = [_ANGLES.fullmatch(text.strip()) for text in (answer, gold)]
    if angles[0] and angles[1]:
        return f"({angles[0][1].strip()})", f"({angles[1][1].strip()})"
    return _vectors(answer, gold)


def _plain(text: str) -> str:
    if "C" in text and ("_" in text or "^" in text):
        text = _BINOMIAL.sub(_binomial, text)
    if "binom" in text:
        text = _CHOOSE.sub(_chosen, re.sub(r"\\[dt]binom(?![a-zA-Z])", r"\\binom", text))
    if _SYMPY.search(text):
        text = _from_sympy(text)
    if "sqrt" in text and _ROOT.search(text):
        text = _roots(text)
    if _RELATION.search(text):
        text = _JOINED.sub(lambda sign: " or " if sign[1] in ("lor", "vee") else " and ", text)
    return _PI.sub(r"\\pi ", text) if "pi" in text else text


def _binomial(match: re.Match[str]) -> str:
    """`C_n^k` as a binomial for integers n of at least k; smaller n is a letter with an index and an exponent."""
    top, bottom = (number for number in match.groups() if number)
    if match[0].startswith("C") and match[0].index("^") < match[0].index("_"):
        top, bottom = bottom, top
    return rf"\binom{{{top}}}{{{bottom}}}" if int(top) >= int(bottom) else match[0]


def _chosen(match: re.Match[str]) -> str:
    """The number of a binomial of two integers, because math-verify reads a factor before it as a summand."""
    top, bottom = int(match["top"]), int(match["bottom"])
    if top > MAX_BINOMIAL:
        return match[0]
    return ("\\cdot " if match["letter"] else "").join((match["letter"] or "", f"({math.comb(top, bottom)})"))


def _from_sympy(text: str) -> str:
    for pattern, replacement in _WORDS:
        text = pattern.sub(replacement, text)
    for power in reversed(list(_POWER.finditer(text))):  # the last first, so that an exponent is already rewritten
        start, end = power.span()
        close = _closing(text, end)
        plain = _EXPONENT.match(text, end)
        if close:
            exponent, end = text[end + 1 : close - 1], close
        elif plain:
            close = _closing(text, plain.end())  # 2**sin(x)
            end = close if close and plain[0][-1:].isalpha() and len(plain[0]) > 1 else plain.end()
            exponent = text[power.end() : end]
        else:
            continue
        text = f"{text[:start]}^{{{exponent}}}{text[end:]}"
    return re.sub(r"\^\{(\w)\}(?=\W|$)", r"^\1", text)


def _roots(text: str) -> str:
    for root in reversed(list(_ROOT.finditer(text))):
        close = _closing(text, root.end() - 1)
        if close:
            text = rf"{text[: root.start()]}\sqrt{{{text[root.end() : close - 1]}}}{text[close:]}"
    return text


def _closing(text: str, start: int) -> int:
    """The place after the bracket that closes the one at `start`; 0 without one."""
    if text[start : start + 1] != "(":
        return 0
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place + 1
    return 0


def _vectors(answer: str, gold: str) -> tuple[str, str]:
    """Both as tuples if one is a vector in i, j, k and the other a tuple, a row or a column of two or three.

    So are two vectors, if one has an accent: `\\hat{i}` is `\\mathbf{i}`.
    """
    if not any("j" in text or "k" in text for text in (answer, gold)):
        return answer, gold
    mine, theirs = _components(answer), _components(gold)
    if mine and theirs and _ACCENT.search(answer + gold):
        return f"({','.join(mine)})", f"({','.join(theirs)})"
    if (mine is None) == (theirs is None):
        return answer, gold
    entries = _entries(gold if theirs is None else answer)
    vector = mine if theirs is None else theirs
    if vector is None or len(entries) not in (2, 3) or (len(entries) == 2 and vector[2] != "0"):
        return answer, gold
    both = [f"({','.join(parts)})" for parts in (vector[: len(entries)], entries)]
    return (both[0], both[1]) if theirs is None else (both[1], both[0])


def _components(text: str) -> list[str] | None:
    r"""The coefficients of `2\hat{i} - \hat{j} + 3\hat{k}`, absent ones as 0; None for another text."""
    text = "".join(_ACCENT.sub(r"\1", text).split())
    found: dict[str, str] = {}
    for term in _terms(text):
        match = _TERM.fullmatch(term)
        if match is None or match["axis"] in found:
            return None
        factor = match["factor"].removesuffix("*").removesuffix(r"\cdot")
        found[match["axis"]] = match["sign"] + (factor or "1") + (match["below"] or "")
    return [found.get(axis, "0") for axis in "ijk"] if len(found) > 1 or "j" in found or "k" in found else None


def _terms(text: str) -> list[str]:
    """The terms of a sum, each with its sign; signs inside brackets do not separate."""
    terms, start = [], 0
    for place, (character, depth) in enumerate(zip(text, depths(text), strict=False)):
        if character in "+-" and depth == 0 and place > start:
            terms.append(text[start:place])
            start = place
    return [*terms, text[start:]]


def _entries(text: str) -> list[str]:
    r"""The entries of `(1,2)`, `\langle 1, 2 \rangle`, a row or a column."""
    column = _TUPLE.fullmatch(text.strip())
    if column:
        rows = [row.strip() for row in column["rows"].strip().removesuffix(r"\\").split(r"\\")]
        return (
            [entry.strip() for entry in rows[0].split("&")] if len(rows) == 1 else [] if "&" in "".join(rows) else rows
        )
    angle = _ANGLES.fullmatch(text.strip())
    opening, inside, closing = brackets(text.strip())
    if angle is None and (opening, closing) != ("(", ")"):
        return []
    return split_top(angle[1] if angle else inside)
