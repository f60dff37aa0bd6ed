"""Compares the output of a program with the expected one, outside the sandbox: untrusted bytes and JSON."""

from __future__ import annotations

import math
import re
from itertools import zip_longest
from typing import Any

_NUMBER = re.compile(rb"[-+]?(\d{1,300}\.?\d{0,300}|\.\d{1,300})([eE][-+]?\d{1,4})?")
_INTEGER = re.compile(rb"[-+]?\d+")


def same_output(mine: bytes, gold: bytes, *, tolerance: float) -> bool:
    """Compare line by line, ignoring white space at the ends of lines and empty last lines.

    Where the gold writes a number with a point or an exponent, any number within `tolerance` is equal (relative to the
    gold's size, absolute below 1); integers and words are compared as text.
    """
    return all(
        a is not None and b is not None and (a == b or _same_words(a.split(), b.split(), tolerance))
        for a, b in zip_longest(_lines(mine), _lines(gold))
    )


def same_value(mine: Any, gold: Any, *, tolerance: float) -> bool:
    """Compare JSON values: true is not 1, 2.0 is 2, and where the gold is no integer the tolerance applies."""
    match gold:
        case bool() | None | str():
            return type(mine) is type(gold) and bool(mine == gold)
        case int() | float():
            return type(mine) in (int, float) and _same_numbers(mine, gold, tolerance)
        case list():
            return isinstance(mine, list) and len(mine) == len(gold) and all(
                same_value(a, b, tolerance=tolerance) for a, b in zip(mine, gold, strict=True)
            )  # fmt: skip
        case dict():
            return isinstance(mine, dict) and mine.keys() == gold.keys() and all(
                same_value(mine[key], gold[key], tolerance=tolerance) for key in gold
            )  # fmt: skip
    return False


def _lines(text: bytes) -> list[bytes]:
    return [line.rstrip() for line in text.rstrip().split(b"\n")]


def _same_words(mine: list[bytes], gold: list[bytes], tolerance: float) -> bool:
    return len(mine) == len(gold) and all(a == b or _close(a, b, tolerance) for a, b in zip(mine, gold, strict=True))


def _close(mine: bytes, gold: bytes, tolerance: float) -> bool:
    if _INTEGER.fullmatch(gold) or not (_NUMBER.fullmatch(gold) and _NUMBER.fullmatch(mine)):
        return False
    return _same_numbers(float(mine), float(gold), tolerance)


def _same_numbers(mine: float, gold: float, tolerance: float) -> bool:
    if mine == gold:
        return True
    if isinstance(gold, int) or not math.isfinite(gold):
        return False
    try:
        return abs(mine - gold) <= tolerance * max(1.0, abs(gold))
    except OverflowError:  # an integer of more than 308 digits: not near any float
        return False
