"""Computer algebra where no exact rule applies: math-verify without its time-outs, and checks of its positive answers.

Texts that are too large (`bounds.py`: long ones, towers of powers, factorials of factorials) are refused before they
are parsed. The checks catch known wrong positives of math-verify.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from winnow.errors import ConfigError
from winnow.installed import is_installed
from winnow.rewards.math_equivalence import bounds

_UNFINISHED = re.compile(r"\\[lcdv]?dots|\.\.")  # math-verify ignores the dots of 0.33\ldots
_MACRO = re.compile(r"\\[a-zA-Z]+")
_WARMING = (r"\frac{\sqrt{2}}{3} \sin x", r"e^{-2 t} + \ln 5", r"2 x \le 7!")
_DIGITS = 50
_POINTS = (1237, 2749)


def available() -> bool:
    """True when math-verify can be imported."""
    return is_installed("math_verify")


def require() -> None:
    """Raise ConfigError where math-verify is not installed."""
    if not available():
        raise ConfigError(
            "the grader 'math' needs the package math-verify",
            remedy="pip install 'winnow-rl[math]'",
            key="grader",
            code="config.not_installed",
        )


def warm() -> None:
    """Import math-verify and parse a few texts, so that the processes forked from this one need not."""
    for text in _WARMING:
        equal(text, text)


def equal(answer: str, gold: str) -> bool:
    """True when math-verify judges the two equal and every check of its answer passes. Raises MemoryError."""
    if not (_suitable(answer) and _suitable(gold)) or _differ_in_case(answer, gold):
        return False
    try:
        return _verified(answer, gold)
    except MemoryError:
        raise  # a limit of the worker, not a verdict
    except Exception:
        return False


def _suitable(text: str) -> bool:
    return bounds.within(text) and not _UNFINISHED.search(text)


def _verified(answer: str, gold: str) -> bool:
    import math_verify  # slow to import, and few answers need it

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that time-outs are off; they are on purpose
    mine, theirs = _parsed(answer), _parsed(gold)
    if mine is None or theirs is None or not (_is_informative(mine) and _is_informative(theirs)):
        return False
    if not (_covers(mine, answer) and _covers(theirs, gold) and _agree(mine, theirs)):
        return False  # the checks come first, because simplifying expressions that differ is slow
    return bool(math_verify.verify(theirs, mine, timeout_seconds=None, raise_on_error=True))


def _differ_in_case(answer: str, gold: str) -> bool:
    """Whether letters differ in case only, which math-verify sometimes ignores. (I and i are its imaginary unit.)"""
    mine, theirs = _letters(answer), _letters(gold)
    return any(letter.swapcase() in theirs - mine for letter in mine - theirs - {"i", "I"})


def _covers(parsed: Any, text: str) -> bool:
    """False when a letter of the text is missing in the parsed object: math-verify parses `2 E_{1}` as 2."""
    import sympy

    constants = {sympy.E: "e", sympy.I: "i"}
    names = {str(atom).lower() for atom in parsed.atoms(sympy.Symbol)}
    names |= {type(function).__name__.lower() for function in parsed.atoms(sympy.Function)}
    names |= {name for constant, name in constants.items() if parsed.has(constant)}
    return {letter.lower() for letter in _letters(text)} <= set("".join(names))


def _letters(text: str) -> set[str]:
    """The letters outside the names of macros."""
    return {character for character in _MACRO.sub(" ", text) if character.isalpha()}


def _parsed(text: str) -> Any:
    """The sympy object, or None."""
    import math_verify

    config = math_verify.LatexExtractionConfig(boxed_match_priority=0)
    parsed = math_verify.parse(
        rf"\boxed{{{text}}}", [config], fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True
    )
    return parsed[0] if parsed else None


def _is_informative(value: Any) -> bool:
    """False for true, false and the empty set, to which unrelated relations are simplified."""
    import sympy

    if value in (sympy.true, sympy.false):
        return False
    try:
        return value.doit() not in (sympy.true, sympy.false, sympy.S.EmptySet)
    except AttributeError:
        return True


def _agree(mine: Any, theirs: Any) -> bool:
    """Whether both agree to 30 of 50 digits, relative, for several values of the letters: 1/2004! is not 1/2006!.

    An applied unknown function counts as a letter. Values that are not finite numbers must be equal. An object that is
    no expression (a set, a relation) passes, and math-verify alone decides it.
    """
    import sympy

    if not (isinstance(mine, sympy.Expr) and isinstance(theirs, sympy.Expr)):
        return True
    unknown = sympy.core.function.AppliedUndef
    letters = sorted(mine.free_symbols | theirs.free_symbols | mine.atoms(unknown) | theirs.atoms(unknown), key=str)
    points = _POINTS if letters else _POINTS[:1]
    return all(_close(*(_value(side, letters, point) for side in (mine, theirs))) for point in points)


def _value(expression: Any, letters: list[Any], point: int) -> Any:
    """The value at a point. All letters get positive and unusual numbers, so that different answers do not agree by
    chance.
    """
    import sympy

    values = {letter: sympy.Rational(point + 997 * i, 1009) for i, letter in enumerate(letters)}
    return sympy.N(expression.xreplace(values).doit(), _DIGITS)


def _close(a: Any, b: Any) -> bool:
    import sympy

    if not (a.is_number and b.is_number and a.is_finite and b.is_finite):
        return bool(a == b)
    return bool(abs(a - b) <= sympy.Float(10, _DIGITS) ** -30 * max(abs(a), abs(b)))
