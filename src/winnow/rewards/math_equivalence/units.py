r"""The unit after a value, or the money before it: `90^\circ`, `15 cm^2`, `12 \text{ m/s}`, `4 apples`, `\$36`.

    unit   := factor (("/" | per | \cdot | * | - | blank) factor)*  |  \frac{unit}{unit}
    factor := (square | cubic)? name (^exponent | squared | cubed)?

A unit is followed by the end of the element of a list or of a side of an equation. Units are never converted: two are
the same if they are the same product of powers, so `m s^{-1}` is `meters per second`, and km is not 1000 m.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from dataclasses import dataclass

from winnow.rewards.math_equivalence import signs
from winnow.rewards.math_equivalence.latex import UPRIGHT
from winnow.rewards.math_equivalence.unit_words import COUNTED, MONEY_NAMES, Powers, lookup

_DOLLAR = re.compile(r"\\\$")
_SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALED = re.compile(  # a whole number: .5 million, and not the 2 of 1/2 million
    rf"(?<![\w/^])(?<!\d\.)(?=\.?\d)(\d*)(?:\.(\d+))?\s*({'|'.join(_SCALES)})(?![a-zA-Z])", re.IGNORECASE
)

_SYMBOLS = "¢€£¥₩₹₽元"
_MACROS = {
    r"\pounds": "£",
    r"\textsterling": "£",
    r"\euro": "€",
    r"\texteuro": "€",
    r"\textyen": "¥",
    r"\textcent": "¢",
}
_MACRO = "|".join(re.escape(macro) + "(?![a-zA-Z])" for macro in _MACROS)
_NAME = rf"{UPRIGHT}?[A-Za-zÅµμΩ]+|[{_SYMBOLS}]|{_MACRO}"
_START = re.compile(
    rf"(?<![A-Za-z\\{UPRIGHT}])(?:{_NAME})|[{_SYMBOLS}]|{_MACRO}"
    rf"|/(?=\s*(?:{UPRIGHT}|[A-Za-z]{{3}}))|\\frac\s*\{{(?=\s*[A-Za-z{UPRIGHT}])"
)
_FACTOR = re.compile(
    rf"(?:(?P<by>square|cubic|sq|cu)\.?\s+)?(?P<name>{_NAME})"
    r"(?:\s*\^\s*(?:\{\s*(?P<braced>-?\d)\s*\}|(?P<exponent>-?\d))|\s+(?P<word>squared|cubed)(?![a-zA-Z]))?"
)
_SECOND = re.compile(r"[ -]([A-Za-z]+)(?![A-Za-z])")
_OVER = re.compile(r"\s*/\s*|\s*per\s+")
_TIMES = re.compile(r"-|\s*(?:\\cdot(?![a-zA-Z])|\*)\s*|\s+")
_FRACTION, _MIDDLE, _END = (re.compile(part) for part in (r"\\frac\s*\{\s*", r"\s*\}\s*\{\s*", r"\s*\}"))
_EXPONENTS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_VALUE = re.compile(
    r"(?:[\d)}\]]|\d\.|(?P<letter>(?<![a-zA-Z\\])[b-zB-HJ-Z])|\\(?:pi|infty|alpha|beta|theta|phi|omega|lambda))\s*$"
)
_IN_BRACKETS = re.compile(r"(?<=\d) ?\(\s*$")
_AFTER = re.compile(
    r"(?:\s|[)\]](?!\s*\^)|\\\})*(?:$|[,;:=<>&+-]|\\(?:le|ge|ne|lt|gt|cup|in|pm|end)(?![a-zA-Z])|\\\\"
    r"|(?:or|and)(?![a-zA-Z]))"
)
_MONEY = re.compile(
    rf"(?<![^\s(\[,=+-])(?:(?P<sign>[{_SYMBOLS}]|{_MACRO})\s*(?=[^\s,;])"
    rf"|(?:(?P<name>[A-Z]{{3}}|Rs)\.?|(?P<country>US|HK|NZ|AU?|CA?|S)\s*\\\$)\s*(?=[-+]?(?:\.?\d|\\frac|\\sqrt)))"
)
_DOLLARS = {"US": "USD", "HK": "HKD", "NZ": "NZD", "A": "AUD", "AU": "AUD", "C": "CAD", "CA": "CAD", "S": "SGD"}
_QUANTITY = re.compile(rf"(\d+(?:\.\d+)?) ?(?:({_NAME})(?![a-zA-Z])|(\^\s*\{{?\s*\\circ\s*\}}?|'{{1,2}}|\"))")
_BETWEEN = re.compile(r"\.?\s*,?\s*(?:and\s+)?")


@dataclass(frozen=True, slots=True)
class _Unit:
    """A unit and its place in a text."""

    start: int
    end: int
    powers: Powers
    value: str  # the element of a list to which it belongs

    def names(self) -> frozenset[str]:
        money = {name for name, exponent in self.powers.items() if name in MONEY_NAMES and exponent == 1}
        rest = _product({name: exponent for name, exponent in self.powers.items() if name not in money})
        return frozenset(money | ({rest} if rest else set()))


def without_units(text: str) -> str:
    """Tidy text without units, currency and the signs of bare numbers, and with `5 million` written in digits.

    `5 hours 30 minutes` keeps its units: without them it is two numbers.
    """
    text = in_digits(text)
    if not compound(text):
        text = without_signs(_cut(text))
    return " ".join(text.replace(UPRIGHT, "").split())


def units_of(text: str) -> frozenset[str]:
    """The units in a tidy text, one word per unit, with powers (`meter second^-1`); money apart from the rest."""
    text = in_digits(text)
    rest = _cut(text)
    found = {"dollar"} if _DOLLAR.search(rest) and without_signs(rest) != rest else set[str]()
    return frozenset(found.union(signs.names(rest), *(unit.names() for unit in _units(text))))


def exchanged(answer: str, gold: str) -> bool:
    """Whether both tidy texts have units, and not the same ones.

    Several different units belong to the same values in both texts, and none of them may be omitted.
    """
    mine, theirs = units_of(answer), units_of(gold)
    if mine and theirs and _resolved(mine, theirs) != _resolved(theirs, mine):
        return True
    a, g = (_units(in_digits(text)) for text in (answer, gold))
    several = any(len({unit.names() for unit in side}) > 1 for side in (a, g))
    return several and sorted(map(_pair, a)) != sorted(map(_pair, g))


def in_digits(text: str) -> str:
    """`5.5 million` as 5500000."""
    return _SCALED.sub(_with_zeros, text)


def without_signs(text: str) -> str:
    """The text without dollar signs and the signs of bare numbers, unless it has nothing else."""
    rest = _DOLLAR.sub(" ", signs.without(text))
    return rest if any(c.isalnum() for c in rest) else text


def compound(text: str) -> list[tuple[str, str]] | None:
    """(number, unit) of each part of `5 hours 30 minutes`; None unless the whole text is parts of different units."""
    parts: list[tuple[str, str]] = []
    place, text = 0, text.strip()
    while place < len(text):
        match = _QUANTITY.match(text, _BETWEEN.match(text, place).end() if parts else 0)  # type: ignore[union-attr]
        if match is None:
            return None
        unit = _part(match[2]) if match[2] else "".join(match[3].split())
        if unit is None:
            return None
        parts.append((match[1], unit))
        place = match.end()
    return parts if len({unit for _, unit in parts}) > 1 else None


def _part(name: str) -> str | None:
    powers = _named(name, upright=name in "hmsgl" or len(name) > 1)
    return None if powers is None else _product(powers)


@functools.lru_cache(maxsize=256)
def _units(text: str) -> tuple[_Unit, ...]:
    """The units of a text in order, money before a number included."""
    found: list[_Unit] = []
    for match in _START.finditer(text):
        start = match.start()
        if (found and start < found[-1].end) or not (unit := _unit_at(text, start)):
            continue
        found.append(unit)
    for match in _MONEY.finditer(text):
        powers = _named(match["sign"] or match["name"] or _DOLLARS[match["country"]], upright=True)
        if powers is not None and set(powers) <= MONEY_NAMES:
            found.append(_Unit(match.start(), match.end(), powers, text[match.end() :].partition(",")[0].strip()))
    return tuple(sorted(found, key=lambda unit: unit.start))


def _unit_at(text: str, start: int) -> _Unit | None:
    before = text[max(0, start - 12) : start]
    bracketed = _IN_BRACKETS.search(before)
    value = bracketed or _VALUE.search(before)
    if value is None:
        return None
    end, powers = _read(text, start)
    if value.re is _VALUE and value["letter"] and COUNTED & powers.keys():
        return None  # x cm, but not the option of "B polygons"
    if bracketed:  # 9 (apples)
        start -= len(bracketed[0])
        end = end + 1 if powers and text[end : end + 1] == ")" else start
    if not powers or end <= start or not _AFTER.match(text, end):
        return None
    return _Unit(start, end, powers, text[:start].rpartition(",")[2].strip())


def _read(text: str, at: int) -> tuple[int, Powers]:
    """The longest unit at a place: its end and its powers; no powers without one."""
    if fraction := _FRACTION.match(text, at):
        return _read_fraction(text, fraction.end())
    powers: Counter[str] = Counter()
    before = ""  # the name of the last factor
    while True:
        over = _OVER.match(text, at)
        joint = over or (_TIMES.match(text, at) if before else None)
        if not joint and before:
            return at, powers
        place = joint.end() if joint else at
        factor = _denominator(text, place) if over else None
        factor = factor or _factor(text, place, after=before if over else "")
        if factor is None:
            return at, powers
        at, before, named = factor
        for name, exponent in named.items():
            powers[name] += -exponent if over else exponent


def _denominator(text: str, at: int) -> tuple[int, str, Powers] | None:
    """Several factors in brackets: J/(kg K)."""
    if text[at : at + 1] != "(":
        return None
    end, powers = _read(text, at + 1)
    return (end + 1, ")", powers) if powers and text[end : end + 1] == ")" else None


def _read_fraction(text: str, at: int) -> tuple[int, Powers]:
    middle, above = _read(text, at)
    between = _MIDDLE.match(text, middle)
    end, below = _read(text, between.end()) if above and between else (at, {})
    closing = _END.match(text, end)
    if not below or closing is None:
        return at, {}
    powers = Counter(above)
    powers.subtract(below)
    return closing.end(), powers


def _factor(text: str, at: int, *, after: str) -> tuple[int, str, Powers] | None:
    """(end, name, powers) of one factor. After `km/` a single letter is a unit without \\text."""
    match = _FACTOR.match(text, at)
    if match is None:
        return None
    name, end = match["name"], match.end()
    second = _SECOND.match(text, match.end("name"))
    powers = lookup(f"{name} {second[1]}", upright=True) if second else None
    if powers is not None and second:
        name, end = second[0], second.end()
    else:
        powers = _named(name, upright=len(after.strip(UPRIGHT)) > 1)
    if powers is None:
        return None
    word = (match["by"] or match["word"] or "").lower()
    exponent = int(match["braced"] or match["exponent"] or _EXPONENTS.get(word, 1))
    return end, name, {unit: power * exponent for unit, power in powers.items()}


def _named(name: str, *, upright: bool) -> Powers | None:
    return lookup(_MACROS.get(name, name.removeprefix(UPRIGHT)), upright=upright or name.startswith(UPRIGHT))


def _cut(text: str) -> str:
    """The text without its units, signs excepted."""
    place, pieces = 0, []
    for unit in _units(text):
        pieces += [text[place : unit.start], " "]
        place = unit.end
    return "".join((*pieces, text[place:]))


def _product(powers: Powers) -> str:
    factors = (name if exponent == 1 else f"{name}^{exponent}" for name, exponent in sorted(powers.items()) if exponent)
    return " ".join(factors)


def _resolved(names: frozenset[str], others: frozenset[str]) -> frozenset[str]:
    """The names, each sign of two currencies as the one that is among the others."""
    return frozenset(next((one for one in name.split("|") if one in others), name) for name in names)


def _pair(unit: _Unit) -> tuple[str, list[str]]:
    return "".join(unit.value.split()), sorted(unit.names())


def _with_zeros(match: re.Match[str]) -> str:
    whole, decimals, word = match[1], match[2] or "", match[3].lower()
    places = _SCALES[word]
    return whole + decimals.ljust(places, "0") if len(decimals) <= places else match[0]
