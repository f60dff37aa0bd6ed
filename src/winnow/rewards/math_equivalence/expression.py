r"""A small language of exact expressions, which are parsed without executing anything and compared at points.

    sum      := product (("+" | "-") product)*
    product  := signed (("*" | "/" | \cdot | \times | \div | nothing) signed)*      nothing: not before a number
    signed   := ("+" | "-")* power
    power    := atom ("^" (digits | letter | "{" sum "}" | "(" sum ")"))? ("^\circ" | "\%")?     no towers
    atom     := number | number \overline{digits} | number \frac{digits}{digits} | letter | \pi | \frac{sum}{sum}
              | \sqrt[sum]{sum} | "(" sum ")" | "{" sum "}"

Two expressions are the same when they agree at three points: exactly if everything is rational, else to 950 of
1,000 digits, relative. A difference that is not identically zero practically never vanishes at pseudo-random points
(Schwartz, 1980; Zippel, 1979). Sizes are bounded, so a comparison takes milliseconds.
"""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from operator import add, mul, sub, truediv
from typing import Any

from winnow import seeds
from winnow.rewards.math_equivalence.latex import apart

Value = Fraction | Decimal

MAX_TOKENS = 250  # bounds the recursion of an evaluation
MAX_BITS = 3_000  # 903 digits: two roots that differ in the last of them still differ within _TOLERANCE
MAX_DEPTH = 40
MAX_ROOT = 20
MAX_POWERS = 12  # irrational ones, which take about 20 ms each
_CONTEXT = decimal.Context(prec=1_000, Emax=10**6, Emin=-(10**6))
_TOLERANCE = Decimal("1e-950")
# To 85 digits. Both sides are evaluated with the same number, so it acts like a letter with this value.
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803")
_GREEK = (
    "alpha beta gamma delta epsilon theta lambda mu nu rho sigma tau phi varphi psi omega"
    " Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega"
)
_FACTORS = {"*": "*", r"\cdot": "*", r"\times": "*", "/": "/", r"\div": "/"}
_ARITHMETIC: Mapping[str, Callable[[Any, Any], Value]] = {"+": add, "-": sub, "*": mul, "/": truediv}
# I(0) is not I times 0, and f(-x) is not -f(x)
_APPLIED = re.compile(r"(?<![a-zA-Z\\])(?:[a-zA-Z]\s*\(\s*[-+]?\d+(?:\.\d*)?\s*\)|f\s*\()")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d*)?|\.\d+)|(?P<word>\\[a-zA-Z]+|sqrt|pi(?![a-zA-Z]))|(?P<letter>[a-zA-Z])"
    r"|(?P<sign>[-+*/^(){}\[\]]|\\%))",
    re.ASCII,
)


class Unreadable(Exception):
    """Not in the language, or beyond its bounds."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operation; `operation` is a value, a letter, or one of + - * / ^ root."""

    operation: str | Fraction
    operands: tuple[Node, ...] = ()

    def letters(self) -> frozenset[str]:
        """The unknowns, without pi."""
        if self.operands:
            return frozenset().union(*(operand.letters() for operand in self.operands))
        return frozenset({self.operation} if isinstance(self.operation, str) and self.operation != "pi" else ())


_DEGREE = Node("/", (Node("pi"), Node(Fraction(180))))


def read(text: str) -> Node:
    """The expression that a text represents. Raises Unreadable."""
    if _APPLIED.search(text):
        raise Unreadable("a function of a number, or a product with it")
    if apart(text):
        raise Unreadable("numbers side by side")
    reader = _Reader(list(_tokens(text)))
    node = reader.sum(0)
    if reader.here:
        raise Unreadable(f"{reader.here!r} is left over")
    if _irrational_powers(node) > MAX_POWERS:
        raise Unreadable("more irrational powers than are quick to evaluate")
    return node


def same(a: Node, b: Node) -> bool | None:
    """Equal for every value of the letters; None when neither is ever defined. Raises Unreadable when too large."""
    verdict: bool | None = None
    with decimal.localcontext(_CONTEXT):
        for point in range(3):
            x, y = _at(a, point), _at(b, point)
            if x is None or y is None:  # \sqrt{ab} has a value where \sqrt{a}\sqrt{b} has none
                if (x is None) != (y is None) and not (a.letters() | b.letters()):
                    return False
                continue
            if not _close(x, y):
                return False
            verdict = True
    return verdict


def number(text: str) -> Fraction | None:
    """The number in a text, to 1,000 digits; None for another text, one with letters or one without a value."""
    try:
        node = read(text)
        with decimal.localcontext(_CONTEXT):
            value = None if node.letters() else _at(node, 0)
    except Unreadable:
        return None
    return None if value is None else Fraction(value)


def proportional(a: Node, b: Node) -> bool | None:
    """a = c * b for one constant c other than zero: `a = 0` and `b = 0` are one equation. None as for `same`."""
    ratios: list[Value] = []
    with decimal.localcontext(_CONTEXT):
        for point in range(3):
            x, y = _at(a, point), _at(b, point)
            if x is None or y is None:
                continue
            if x == 0 or y == 0:
                return None
            ratios.append(_apply("/", x, y))
        return all(_close(ratio, ratios[0]) for ratio in ratios) if len(ratios) > 1 else None


def _tokens(text: str) -> Iterator[str]:
    position = count = 0
    text = text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        count += 1
        if match is None or count > MAX_TOKENS:
            raise Unreadable(f"cannot read {text[position : position + 20]!r}")
        yield match[0].strip()
        position = match.end()


class _Reader:
    """Recursive descent over the tokens; `here` is the next one, "" at the end."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = [*tokens, ""]
        self.position = 0

    @property
    def here(self) -> str:
        return self.tokens[self.position]

    def take(self) -> str:
        token = self.here
        self.position += bool(token)
        return token

    def expect(self, token: str) -> None:
        if self.take() != token:
            raise Unreadable(f"{token!r} is missing")

    def sum(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise Unreadable("nested too deeply")
        node = self.product(depth)
        while self.here in ("+", "-"):
            node = Node(self.take(), (node, self.product(depth)))
        return node

    def product(self, depth: int) -> Node:
        node = self.signed(depth)
        while True:
            if self.here in _FACTORS:
                node = Node(_FACTORS[self.take()], (node, self.signed(depth)))
            elif self.here in ("(", "{") or self.here[:1].isalpha() or self.here[:1] == "\\":
                # A factor without a sign. It is never a number, because x2 and \sqrt{2}1 are ambiguous.
                node = Node("*", (node, self.power(depth)))
            else:
                return node

    def signed(self, depth: int) -> Node:
        negative = False
        while self.here in ("+", "-"):
            negative ^= self.take() == "-"
        node = self.power(depth)
        return Node("-", (Node(Fraction(0)), node)) if negative else node

    def power(self, depth: int) -> Node:
        base = self.atom(depth)
        if self.here == "^" and self.tokens[self.position + 1] != r"\circ":
            base = self._raised(base, depth)
        return self._with_sign(base)

    def _with_sign(self, base: Node) -> Node:
        """The base times the number that a percent or degree sign means."""
        if self.here == "^" and self.tokens[self.position + 1] == r"\circ":
            self.position += 2
            return Node("*", (base, _DEGREE))
        if self.here == r"\%":
            self.take()
            return Node("*", (base, Node(Fraction(1, 100))))
        return base

    def _raised(self, base: Node, depth: int) -> Node:
        self.take()
        if self.here in ("{", "("):
            exponent = self.atom(depth)
        elif self.here.isalnum():
            exponent = _single(self.take())
        else:
            raise Unreadable("an exponent is a digit, a letter or a group")
        if self.here == "^" or _has_power(exponent):
            raise Unreadable("a tower of exponents")
        number = None if exponent.letters() else _at(exponent, 0)
        if isinstance(number, Fraction) and number.denominator % 2 and 1 < number.denominator <= MAX_ROOT:
            power = Node("^", (base, Node(Fraction(number.numerator))))  # x^{2/3} is real for negative x, too
            return Node("root", (power, Node(Fraction(number.denominator))))
        return Node("^", (base, exponent))

    def atom(self, depth: int) -> Node:
        token = self.take()
        if token in ("(", "{"):
            node = self.sum(depth + 1)
            self.expect(")" if token == "(" else "}")
            return node
        if token[:1].isdigit() or token[:1] == ".":
            return self._number(token)
        if token in (r"\sqrt", "sqrt"):
            return self._root(depth)
        if token == r"\frac":
            return Node("/", (self._group(depth), self._group(depth)))
        return _single(token)

    def _group(self, depth: int) -> Node:
        if self.here != "{":
            raise Unreadable("an argument in braces is missing")
        return self.atom(depth)

    def _root(self, depth: int) -> Node:
        degree = Node(Fraction(2))
        if self.here == "[":
            self.take()
            degree = self.sum(depth + 1)
            self.expect("]")
        if self.here not in ("{", "("):
            raise Unreadable("a root needs its argument in braces")
        return Node("root", (self.atom(depth), degree))

    def _number(self, token: str) -> Node:
        if self.here == r"\overline":
            return self._repeating(token)
        number = Node(Fraction(token.rstrip(".")))
        fraction = self.tokens[self.position : self.position + 7]
        mixed = len(fraction) == 7 and fraction[::3] == [r"\frac", "}", "}"] and fraction[1::3] == ["{", "{"]
        if token.isdigit() and mixed and _is_proper(fraction[2], fraction[5]):
            return Node("+", (number, self.atom(0)))  # 1\frac{2}{3} is 1 + 2/3
        return number

    def _repeating(self, token: str) -> Node:
        """`0.1\\overline{6}` is 0.1 + 6/90."""
        _, point, decimals = token.partition(".")
        self.take()
        self.expect("{")
        digits = self.take()
        self.expect("}")
        if not point or not digits.isdigit():
            raise Unreadable("a bar over what does not repeat")
        repeating = Fraction(int(digits), (10 ** len(digits) - 1) * 10 ** len(decimals))
        return Node(Fraction(token.rstrip(".")) + repeating)


def _single(token: str) -> Node:
    if token.isdigit():
        return Node(Fraction(token))
    if token in (r"\pi", "pi"):
        return Node("pi")
    if (len(token) == 1 and token.isalpha()) or token.removeprefix("\\") in _GREEK.split():
        return Node(token)
    raise Unreadable(f"{token!r} is not in the language")


def _is_proper(top: str, bottom: str) -> bool:
    return top.isdigit() and bottom.isdigit() and int(top) < int(bottom)


def _has_power(node: Node) -> bool:
    return node.operation == "^" or any(_has_power(operand) for operand in node.operands)


def _irrational_powers(node: Node) -> int:
    """Powers and roots that may need a logarithm; a square root does not."""
    if not node.operands:
        return 0
    exponent = node.operands[1]
    rational = Fraction(2) if node.operation == "root" else Fraction(1)
    plain = isinstance(exponent.operation, Fraction) and (exponent.operation / rational).denominator == 1
    slow = node.operation in ("^", "root") and not plain
    return slow + sum(_irrational_powers(operand) for operand in node.operands)


def _at(node: Node, point: int) -> Value | None:
    """The value at a point; None if it is not real: after a division by zero, or the root of a negative number."""
    try:
        return _evaluate(node, point)
    except ArithmeticError:
        return None


def _evaluate(node: Node, point: int) -> Value:
    if isinstance(node.operation, Fraction):
        return node.operation
    if not node.operands:
        return _PI if node.operation == "pi" else _letter(node.operation, point)
    values = [_evaluate(operand, point) for operand in node.operands]
    x = _apply(node.operation, values[0], values[1])
    if isinstance(x, Fraction) and (abs(x.numerator) | x.denominator).bit_length() > MAX_BITS:
        raise Unreadable("a number too large to compare")
    return x


def _letter(name: str, point: int) -> Fraction:
    """A fixed rational per letter: positive at point 0, negative at point 1, of mixed sign at point 2."""
    size = Fraction(1 + int(seeds.uniform("expression", name, point) * 3000), 1009)
    negative = point == 1 or (point == 2 and seeds.uniform("expression", name, "sign") < 0.5)
    return -size if negative else size


def _apply(operation: str, x: Value, y: Value) -> Value:
    if operation == "^":
        return _power(x, y)
    if operation == "root":
        return _root(x, y)
    if not (isinstance(x, Fraction) and isinstance(y, Fraction)):
        x, y = _decimal(x), _decimal(y)
    return _ARITHMETIC[operation](x, y)


def _power(x: Value, y: Value) -> Value:
    if isinstance(x, Fraction) and isinstance(y, Fraction) and y.denominator == 1:
        if x == 0 and y <= 0:
            raise ZeroDivisionError
        if (abs(x.numerator) | x.denominator).bit_length() * abs(y.numerator) > MAX_BITS:
            raise Unreadable("a power too large to compare")
        return x**y.numerator
    if isinstance(y, Fraction) and y.denominator == 1:
        return _decimal(x) ** y.numerator
    if x <= 0:
        raise ArithmeticError
    return _decimal(x) ** _decimal(y)


def _root(x: Value, degree: Value) -> Value:
    if not isinstance(degree, Fraction) or degree.denominator != 1 or not 2 <= degree <= MAX_ROOT:
        raise Unreadable(f"the degree of a root is an integer from 2 to {MAX_ROOT}")
    n = degree.numerator
    if x < 0:
        if n % 2 == 0:
            raise ArithmeticError
        return -_root(-x, degree)
    if n == 2 and isinstance(x, Fraction):
        top, bottom = math.isqrt(x.numerator), math.isqrt(x.denominator)
        if top * top == x.numerator and bottom * bottom == x.denominator:
            return Fraction(top, bottom)
    if n == 2 or x == 0:
        return _decimal(x).sqrt()
    return _decimal(x) ** (1 / Decimal(n))


def _decimal(x: Value) -> Decimal:
    return x if isinstance(x, Decimal) else Decimal(x.numerator) / Decimal(x.denominator)


def _close(x: Value, y: Value) -> bool:
    if isinstance(x, Fraction) and isinstance(y, Fraction):
        return x == y
    p, q = _decimal(x), _decimal(y)
    return abs(p - q) <= _TOLERANCE * max(abs(p), abs(q))
