"""Numbers written in digits, read exactly."""

from __future__ import annotations

import re
from fractions import Fraction

MAX_DIGITS = 400
_PLAIN = re.compile(
    r"(?P<sign>[-+]?)\$?(?P<whole>\d{1,3}(?:,\d{3})+|\d*)(?P<point>\.\d*)?(?:/(?P<below>\d+)|[eE](?P<power>[-+]?\d{1,3}))?",
    re.ASCII,
)


def to_fraction(text: str) -> Fraction | None:
    """`-1,234.50`, `3/4`, `$5`, `2.5e-3` as an exact number; None for anything else, x/0 and more than 400 digits."""
    text = text.strip()
    match = _PLAIN.fullmatch(text) if len(text) <= MAX_DIGITS else None
    if match is None or not any(c.isdigit() for c in (match["whole"] or "") + (match["point"] or "")):
        return None
    number = Fraction((match["whole"].replace(",", "") or "0") + (match["point"] or "").rstrip("."))
    if match["below"] is not None:
        if int(match["below"]) == 0:
            return None
        number /= int(match["below"])
    number *= Fraction(10) ** int(match["power"] or 0)
    return -number if match["sign"] == "-" else number
