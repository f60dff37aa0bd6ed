"""The unit at the end of an answer: `5.4 cents`, `90^\\circ`, `15 cm^2`, `10\\%`, `\\$36`; none before a number."""

from __future__ import annotations

import re

from winnow.rewards.math_equivalence import signs

_LENGTH = "millimeter centimeter meter kilometer mile inch inche foot feet yard mm cm km ft yd"
_TIME = "second minute hour day week month year sec min hr"
_MONEY = "cent dollar usd euro rupee"
_OTHER = "degree radian gram kilogram kg mg pound lb ounce oz liter litre ml mph kph percent unit point people way"
_WORDS = "|".join(sorted({*_LENGTH.split(), *_TIME.split(), *_MONEY.split(), *_OTHER.split()}, key=len, reverse=True))
_CANONICAL = {"inche": "inch", "in": "inch", "feet": "foot", "ft": "foot", "yd": "yard", "mm": "millimeter"} | {
    **{"cm": "centimeter", "km": "kilometer", "sec": "second", "min": "minute", "hr": "hour"},
    **{"kg": "kilogram", "lb": "pound", "oz": "ounce", "litre": "liter"},
    "usd": "dollar",
}
_IN = r"(?:(?<=[\d})] )|(?<=[\d})]))in"  # a word elsewhere
_POWER = r"(?:\s*\^\s*\{?\s*[23]\s*\}?)?"
_WORD_UNIT = re.compile(
    rf"(?<=[\d}})\s.])\s*(?P<square>square |cubic |sq\.? )?(?<![a-zA-Z\\])(?P<word>{_WORDS}|{_IN})s?(?![a-zA-Z{{(=])"
    rf"{_POWER}(?!\s*\.?\d)",
    re.IGNORECASE,
)
_CURRENCY = re.compile(r"\\\$")
_QUANTITY = re.compile(
    rf"(\d+(?:\.\d+)?) ?(?:({_WORDS})s?(?![a-zA-Z])|"
    r"(\^\s*\{?\s*\\circ\s*\}?|'{1,2}|\"|(?:in|[hmsgl])(?![a-zA-Z])))",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"\s*,?\s*(?:and\s+)?")
_SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALED = re.compile(rf"(\d+)(?:\.(\d+))?\s*({'|'.join(_SCALES)})(?![a-zA-Z])", re.IGNORECASE)


def without_units(text: str) -> str:
    """Tidy text without units, currency and the signs of bare numbers, and with `5 million` written in digits.

    `5 hours 30 minutes` keeps its units: without them it is two numbers.
    """
    text = _SCALED.sub(_in_digits, text)
    if _is_only_a_unit(text) or compound(text):
        return text
    return " ".join(_CURRENCY.sub(" ", _WORD_UNIT.sub(" ", signs.without(text))).split())


def units_of(text: str) -> frozenset[str]:
    """The units in a tidy text, one word per unit, with powers (`centimeter^2`)."""
    if _is_only_a_unit(text):
        return frozenset()
    names = {_name(match) for match in _WORD_UNIT.finditer(text)}
    return frozenset(names | ({"dollar"} if _CURRENCY.search(text) else set()) | signs.names(text))


def compound(text: str) -> list[tuple[str, str]] | None:
    """(number, unit) of each part of `5 hours 30 minutes`; None unless the whole text is parts of different units."""
    parts: list[tuple[str, str]] = []
    place, text = 0, text.strip()
    while place < len(text):
        match = _QUANTITY.match(text, _BETWEEN.match(text, place).end() if parts else 0)  # type: ignore[union-attr]
        if match is None:
            return None
        word = (match[2] or "".join(match[3].split())).lower()
        parts.append((match[1], _CANONICAL.get(word, word)))
        place = match.end()
    return parts if len({unit for _, unit in parts}) > 1 else None


def _name(match: re.Match[str]) -> str:
    word = match["word"].lower()
    power = re.search(r"\^\D*([23])", match[0])
    by_name = {"sq": "2", "cu": "3"}.get((match["square"] or "").lower()[:2])
    exponent = power[1] if power else by_name
    return _CANONICAL.get(word, word) + (f"^{exponent}" if exponent else "")


def _is_only_a_unit(text: str) -> bool:
    return not any(c.isalnum() for c in signs.SIGN.sub("", _WORD_UNIT.sub("", " " + text)))


def _in_digits(match: re.Match[str]) -> str:
    whole, decimals, word = match[1], match[2] or "", match[3].lower()
    places = _SCALES[word]
    return whole + decimals.ljust(places, "0") if len(decimals) <= places else match[0]
