"""Computer algebra for what exact rules leave open: math-verify, its time-outs off, and doubted when it says yes.

Nothing here bounds time: the worker that runs a reward does. Texts that are expensive on purpose (towers, factorials
of long numbers) are turned away before anything is evaluated. The doubts are for math-verify's known wrong positives.
"""

from __future__ import annotations

import importlib.util
import logging
import re
from typing import Any

from winnow.errors import ConfigError

_BOMBS = re.compile(
    r"\^\s*\{?[^{}^]*\^|\^\s*\{?\s*-?\s*\d{5,}|\d{5,}\s*\)?\s*!|!\s*!|\\(?:sum|prod|int|lim|binom\s*\{\d{5,})(?![a-zA-Z])"
)
_DIGITS = 50


def available() -> bool:
    """True when math-verify can be imported."""
    return importlib.util.find_spec("math_verify") is not None


def require() -> None:
    """Raise ConfigError where math-verify is not installed."""
    if not available():
        raise ConfigError("grader 'math' needs the package math-verify: pip install 'winnow-rl[math]'")


def equal(answer: str, gold: str) -> bool:
    """True when math-verify finds the two equal and no doubt remains. Raises MemoryError."""
    if _BOMBS.search(answer) or _BOMBS.search(gold):
        return False
    import math_verify  # slow to import, and needed by few answers

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that time-outs are off; they are on purpose
    mine, theirs = _parsed(answer), _parsed(gold)
    if mine is None or theirs is None or not (_says_something(mine) and _says_something(theirs)):
        return False
    try:
        if not math_verify.verify(theirs, mine, timeout_seconds=None, raise_on_error=True):
            return False
        return _numerically_equal(mine, theirs)
    except MemoryError:
        raise  # a limit of the worker, not a verdict
    except Exception:
        return False


def _parsed(text: str) -> Any:
    """The sympy object, or None."""
    import math_verify

    config = math_verify.LatexExtractionConfig(boxed_match_priority=0)
    try:
        found = math_verify.parse(
            rf"\boxed{{{text}}}", [config], fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True
        )
    except MemoryError:
        raise
    except Exception:
        return None
    return found[0] if found else None


def _says_something(value: Any) -> bool:
    """False for what unrelated relations collapse to: true, false, the empty set."""
    import sympy

    if value in (sympy.true, sympy.false):
        return False
    try:
        return value.doit() not in (sympy.true, sympy.false, sympy.S.EmptySet)
    except AttributeError:
        return True


def _numerically_equal(mine: Any, theirs: Any) -> bool:
    """Numbers must agree to 30 of 50 digits, relative to their size: 1/2004! is not 1/2006!."""
    import sympy

    if not (isinstance(mine, sympy.Expr) and isinstance(theirs, sympy.Expr)):
        return True
    if mine.free_symbols or theirs.free_symbols:
        return True
    a, b = (sympy.N(value.doit(), _DIGITS) for value in (mine, theirs))
    if not (a.is_number and b.is_number and a.is_finite and b.is_finite):
        return bool(a == b)
    return bool(abs(a - b) <= sympy.Float(10, _DIGITS) ** -30 * max(abs(a), abs(b)))
