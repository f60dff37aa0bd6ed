"""Computer algebra if no exact rule applies: math-verify without its time-outs, and checks of its positive answers.

The checks catch known wrong positives of math-verify.

Texts that are too large (long ones, towers of powers, factorials of factorials) are refused before they are parsed,
which `within` decides from the text alone and in one pass over it. Computer algebra parses in quadratic time and
evaluates the parsed expression. So characters, operators, nesting and sizes are bounded. A size is an upper estimate:
the bits of the largest number (a letter has two) and the terms of the largest expanded polynomial.
`((2^{999})^{999})^{999}` has 999^3 bits.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from winnow.installed import is_installed, require_extra
from winnow.rewards.math_equivalence.signs import computed

# math-verify ignores the dots of 0.33\ldots, what follows \approx, and some characters of Unicode. It multiplies by the
# number after a word (2 to 3), of a box in a box it reads the inner one alone, and 1 \mod 4 is 1 \mod 3 to it.
_UNFINISHED = re.compile(
    r"\\[lcdv]?dots|\.\.|\\(?:approx|simeq|doteq|equiv|pmod|boxed|fbox)|[^\x00-\x7f]"
    r"|(?:(?<!\S)[a-zA-Z]{2,}|(?<=\d )[a-zA-Z]) \d+(?!\d|\s?\^)"  # but n 2^{n}
)


def _fraction(decimal: re.Match[str]) -> str:
    """`0.3` as `3/10`: math-verify reads it as the nearest binary number."""
    return rf"{{\frac{{{int(decimal[1] + decimal[2])}}}{{{10 ** len(decimal[2])}}}}}"


# math-verify reads \log_12 5 as \log_1{2} 5, \sin x \cdot y as \sin(x y), d\sin as a differential, e^T as a transpose,
# f(x-1) as a product (but not f(x-1,)), and (3)(4) as a mixed number.
_REWRITES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(\\log)\s*_\s*(\d{2,})", r"\1_{\2}"),
        (
            r"(\\(?:sin|cos|tan|cot|sec|csc|ln|log)(?![a-zA-Z])\s*(?:[_^]\s*(?:\{[^{}]*\}|\w)\s*)*)"
            r"(\{[^{}]*\}|\\frac\{[^{}]*\}\{[^{}]*\}"
            r"|(?:\d+\s*)?(?:\\(?:alpha|beta|theta|phi|omega|pi)(?![a-zA-Z])|[a-zA-Z])(?:\^\w)?"
            r"|\d+(?:\.\d+)?)(?=\s*(?:\\cdot|\\times|\*)"
            r"|(?<!\d)\s*\([^()]*\\(?:sin|cos|tan|cot|sec|csc|ln|log)(?![a-zA-Z]))",
            r"\1(\2)",
        ),
        (r"(?<![\d.])(\d*)\.(\d+)(?![\d.])", _fraction),
        (r"(\\[a-zA-Z]+)|d(?=\s*[a-zA-Z\\])", lambda macro: macro[1] or "{d}"),
        (r"\^T", "^{ T }"),
        (r"\)\s*\(", r") \\cdot ("),
        (r"(?<![a-zA-Z\\])f\s?\((?!\s?\w\s?\))([^(),]+)\)", r"f(\1,)"),
    )
)
_BARE_LOG, _LOG_10 = re.compile(r"\\log(?![a-zA-Z])(?!\s*_)"), re.compile(r"\\log\s*_\s*\{?10(?!\d)")
_MACRO = re.compile(r"\\[a-zA-Z]+")
_NAME = re.compile(r"\\mathbb\s*\{[A-Z]\}|\\[a-zA-Z]+|[a-zA-Z]")
_CAPITAL = re.compile(r"\\(?:Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Upsilon|Phi|Psi|Omega)")
_WARMING = (r"\frac{\sqrt{2}}{3} \sin x", r"e^{-2 t} + \ln 5", r"2 x \le 7!")
_DIGITS = 50
_POINTS = (1237, 2749)
# The rewritten golds of the seven problem files that reach computer algebra have at most 77 tokens, 13 of them costly.
MAX_CHARACTERS = 500  # three times the longest of these golds
MAX_TOKENS = 200  # operators, numbers, letters and brackets
MAX_COSTLY = 24  # the slowest operators: functions, bars and subscripts
MAX_NESTING = 12  # open brackets; a function's count twice
MAX_BITS = 30_000.0
MAX_TERMS = 1_000.0
_SLOW = re.compile(r"\\(?:sum|prod|int|oint|iint|lim|limsup|liminf|Gamma)(?![a-zA-Z])|_\s*\{?\w\}?\s*_")
_COSTLY = re.compile(r"\\(?:arc|ar)?(?:sin|cos|tan|cot|sec|csc)h?|\\(?:ln|lg|log|exp|binom|lfloor|lceil)|[|_]")
_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|\d+(?:\.\d*)?|\.\d+|\S")
_OPENING = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_CLOSING = frozenset(_OPENING.values())
_NEXT_TERM = frozenset({"+", "-", ",", "=", "<", ">", "&", r"\\", r"\pm", r"\mp", r"\le", r"\ge", r"\ne"})
_GROWING = frozenset({r"\exp", r"\sinh", r"\cosh", r"\binom"})
_LETTER_BITS = 2.0


def available() -> bool:
    """True when math-verify can be imported."""
    return is_installed("math_verify")


def require() -> None:
    """Raise ConfigError if math-verify is not installed."""
    require_extra("math_verify", "the grader 'math' needs the package math-verify", "math", key="grader")


def warm() -> None:
    """Import math-verify and parse a few texts, so that the processes forked from this one need not."""
    for text in _WARMING:
        equal(text, text)


def equal(answer: str, gold: str) -> bool:
    """True when math-verify judges the two equal and every check of its answer passes. Raises MemoryError."""
    texts = [computed(text) for text in (answer, gold) if within(text) and not _UNFINISHED.search(text)]
    if len(texts) < 2 or not all(text and within(text) for text in texts):
        return False
    if any(_BARE_LOG.search(a) and _LOG_10.search(b) for a, b in ((answer, gold), (gold, answer))):
        return False  # math-verify takes \log and \log_{10} for the same
    try:
        return _verified(*_without_capitals(*map(str, texts)))
    except MemoryError:
        raise  # a limit of the worker, not a verdict
    except Exception:
        return False


def _without_capitals(answer: str, gold: str) -> tuple[str, str]:
    r"""Both texts with an unused letter for each capital whose small letter occurs too, and for each capital Greek
    letter, because math-verify reads `R` as r and `\Delta` as delta. (I and i are its imaginary unit.)
    """
    names = set(_NAME.findall(f"{answer} {gold}"))
    alike = (name for name in names - {"I"} if name.isupper() and name.lower() in names)
    capitals = sorted({*alike, *filter(_CAPITAL.fullmatch, names)})
    free = [letter for letter in "pqruvwxyzabcfghjklmnos" if not {letter, letter.upper()} & names]
    if len(free) < len(capitals):
        raise ValueError("no letter is free")
    renamed = dict(zip(capitals, free, strict=False))
    mine, theirs = (
        _NAME.sub(lambda name: f" {renamed[name[0]]} " if name[0] in renamed else name[0], text)
        for text in (answer, gold)
    )
    return mine, theirs


def _verified(answer: str, gold: str) -> bool:
    import math_verify  # slow to import, and few answers need it

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that time-outs are off; they are on purpose
    mine, theirs = _parsed(answer), _parsed(gold)
    if mine is None or theirs is None or not (_is_informative(mine) and _is_informative(theirs)):
        return False
    if not (_covers(mine, answer) and _covers(theirs, gold) and _agree(mine, theirs)):
        return False  # the checks come first, because simplifying expressions that differ is slow
    return bool(math_verify.verify(theirs, mine, timeout_seconds=None, raise_on_error=True))


def _covers(parsed: Any, text: str) -> bool:
    """False when a letter of the text is missing in the parsed object: math-verify parses `2 E_{1}` as 2."""
    import sympy

    constants = {sympy.E: "e", sympy.I: "i"}
    names = {str(atom).lower() for atom in parsed.atoms(sympy.Symbol)}
    names |= {type(function).__name__.lower() for function in parsed.atoms(sympy.Function)}
    names |= {name for constant, name in constants.items() if parsed.has(constant)}
    return {letter.lower() for letter in _MACRO.sub(" ", text) if letter.isalpha()} <= set("".join(names))


def _parsed(text: str) -> Any:
    r"""The sympy object; None for a text that is not read as a whole (by default, a \frac inside it is read alone)."""
    import math_verify

    config = math_verify.LatexExtractionConfig(boxed_match_priority=0)
    without_units = replace(config.normalization_config, units=False)  # with them, \sin 2t is \sin 2
    config = replace(config, normalization_config=without_units)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    only_whole: Any = {"fallback_mode": "no_fallback", "extraction_mode": "first_match"}
    parsed = math_verify.parse(rf"\boxed{{{text}}}", [config], parsing_timeout=None, raise_on_error=True, **only_whole)
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


@dataclass(frozen=True, slots=True)
class _Size:
    bits: float
    terms: float

    @property
    def value(self) -> float:
        """An upper estimate of the number itself."""
        return math.exp2(min(self.bits, 100.0))


_ONE = _Size(0.0, 1.0)


def within(text: str) -> bool:
    """Whether computer algebra may parse the text: it is within all bounds and has no slow operator, such as a sum."""
    if len(text) > MAX_CHARACTERS or _SLOW.search(text):
        return False
    tokens = _TOKEN.findall(text)
    costly = sum(_COSTLY.fullmatch(token) is not None for token in tokens)
    if len(tokens) > MAX_TOKENS or costly > MAX_COSTLY or _nesting(tokens) > MAX_NESTING:
        return False
    size = _Sizes(tokens).all()
    return size.bits <= MAX_BITS and size.terms <= MAX_TERMS


def _nesting(tokens: list[str]) -> int:
    """The most brackets that are open at once; one after a function counts twice."""
    opened: list[int] = []
    depth = deepest = 0
    for before, token in zip(["", *tokens], tokens, strict=False):
        if token in _OPENING:
            opened.append(2 if _COSTLY.fullmatch(before) else 1)
            depth += opened[-1]
            deepest = max(deepest, depth)
        elif token in _CLOSING and opened:
            depth -= opened.pop()
    return deepest


class _Sizes:
    """Recursive descent over the tokens of any text, well-formed or not."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.position = 0

    def all(self) -> _Size:
        size = self._sum()
        while self.position < len(self.tokens):  # after an unmatched closing bracket
            self.position += 1
            size = _times(size, self._sum())
        return size

    def _sum(self) -> _Size:
        """The size up to a closing bracket, or the end."""
        bits, terms, product = 0.0, 0.0, _ONE
        while self.position < len(self.tokens) and self.tokens[self.position] not in _CLOSING:
            if self.tokens[self.position] in _NEXT_TERM:
                self.position += 1
                bits, terms, product = max(bits, product.bits) + 1.0, terms + product.terms, _ONE
            else:
                product = _times(product, self._power())
        return _Size(max(bits, product.bits), terms + product.terms)

    def _power(self) -> _Size:
        base = self._atom()
        while self.position < len(self.tokens) and self.tokens[self.position] in ("^", "**", "!"):
            sign = self.tokens[self.position]
            self.position += 1
            base = _factorial(base) if sign == "!" else self._raised(base)
        return base

    def _raised(self, base: _Size) -> _Size:
        while self.position < len(self.tokens) and self.tokens[self.position] in ("+", "-", "^"):
            self.position += 1
        exponent = self._power()
        return _Size(max(base.bits, 1.0) * exponent.value, _expanded(base.terms, exponent.value))

    def _atom(self) -> _Size:
        if self.position >= len(self.tokens):
            return _ONE
        token = self.tokens[self.position]
        self.position += 1
        if token in _OPENING:
            size = self._sum()
            self.position += 1
            return size
        if token[0].isdigit() or (token[0] == "." and len(token) > 1):
            return _Size(_bits(token), 1.0)
        if token in _GROWING:
            return _factorial(self._atom())
        return _Size(_LETTER_BITS if token[-1].isalpha() and token != r"\frac" else 0.0, 1.0)


def _bits(number: str) -> float:
    """Bits of a decimal number as a fraction; of a whole number about its log2, so that a power of 1 stays small."""
    whole, _, decimals = number.partition(".")
    return math.log2(int(whole or "0") + 1) + math.log2(10) * len(decimals)


def _times(a: _Size, b: _Size) -> _Size:
    return _Size(a.bits + b.bits, a.terms * b.terms)


def _factorial(size: _Size) -> _Size:
    return _Size(size.value * max(size.bits, 1.0), 1.0)


def _expanded(terms: float, exponent: float) -> float:
    """Terms of a sum of `terms` terms after it is raised to `exponent`: the number of monomials of that degree."""
    if terms <= 1.0:
        return 1.0
    if exponent > MAX_TERMS or terms > MAX_TERMS:
        return math.inf
    return float(math.comb(int(exponent) + int(terms) - 1, int(terms) - 1))
