r"""Which texts are too large for computer algebra, decided from the text alone and in one pass over it.

Computer algebra parses in quadratic time and evaluates the parsed expression. So characters, operators, nesting and
sizes are bounded. A size is an upper estimate: the bits of the largest number (a letter has two) and the terms of the
largest expanded polynomial. `((2^{999})^{999})^{999}` has 999^3 bits.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

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
