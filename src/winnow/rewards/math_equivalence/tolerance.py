"""Golds with a tolerance or a unit: the fields `error` and `unit` of OlympiadBench."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from winnow.errors import DataError
from winnow.rewards.math_equivalence import exact, expression
from winnow.rewards.math_equivalence.latex import brackets, split_top, tidied, tidy
from winnow.rewards.math_equivalence.numbers import to_fraction
from winnow.rewards.math_equivalence.units import units_of, without_units

Equal = Callable[[str, str], bool]


def tolerant(equal: Equal, error: Fraction) -> Equal:
    """A comparison that also accepts numbers at most `error` away; without an error, `equal` itself."""
    if not error:
        return equal
    return lambda answer, gold: equal(answer, gold) or close(answer, gold, error)


def close(answer: str, gold: str, error: Fraction) -> bool:
    """Equally many numbers, in the same order and brackets, each within `error` of the gold's; units as in `math`."""
    texts = tidied(answer, gold)
    if texts is None or exact.units(*texts) is False:
        return False
    (opening, mine, closing), (left, theirs, right) = _parts(answer), _parts(gold)
    if len(mine) != len(theirs) or (opening, closing) != (left, right):
        return False  # before anything is evaluated
    pairs = ((expression.number(a), expression.number(g)) for a, g in zip(mine, theirs, strict=True))
    return all(a is not None and g is not None and abs(a - g) <= error for a, g in pairs)


def stated_error(meta: Mapping[str, Any], default: float) -> Fraction:
    """The absolute error that a problem allows: `meta["error"]` (a number or its text), else `default`.

    Raises DataError for a field that is no number of at least 0.
    """
    stated = meta.get("error")
    if stated is None or stated == "":
        return Fraction(default)
    error = to_fraction(str(stated))
    if error is None or error < 0:
        raise DataError(
            f"the field 'error' of a problem is {stated!r}",
            remedy="write a number of at least 0, or null",
            code="data.malformed",
        )
    return error


def with_unit(gold: Any, meta: Mapping[str, Any]) -> Any:
    """The gold, or each of several, followed by `meta["unit"]` if that unit is known and it has none: 8 -> 8 min."""
    unit = str(meta.get("unit") or "").replace("$", "").replace("%", r"\%").strip()
    if not unit or without_units(tidy(f"1 {unit}")) != "1":  # no unit, or an unknown one
        return gold
    several = gold if isinstance(gold, (list, tuple)) else [gold]
    return [str(one) if units_of(tidy(str(one))) else f"{_bare(str(one))} {unit}" for one in several]


def _bare(gold: str) -> str:
    return gold.strip().removeprefix("$").removesuffix("$")


def _parts(text: str) -> tuple[str, list[str], str]:
    opening, inside, closing = brackets(exact.value(tidy(text)))
    return opening, split_top(inside), closing
