"""Turns whatever a reward function returned into one `Outcome`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from types import NoneType
from typing import Any

from winnow.metrics import distinct
from winnow.records import CAUSES, Cause, Outcome

_PLAIN: Mapping[str, tuple[type, ...]] = {
    "parts": (dict,), "answer": (str, NoneType), "detail": (str,), "seconds": (int, float), "late": (bool,)
}  # fmt: skip
LARGEST_REWARD = 1e6  # beyond this a number is a bug of the reward (3e38 is what a float32 infinity turns into)


def failure(cause: Cause, detail: str) -> Outcome:
    """The outcome of a verifier that gave no verdict: reward NaN, correct None."""
    return Outcome(reward=math.nan, correct=None, kind="failed", cause=cause, detail=detail, late=cause == "timeout")


def to_outcome(result: Any, *, name: str, correct_at: float = 1.0) -> Outcome:
    """What the reward `name` returned, as an Outcome; never raises.

    A number (int, float, bool, or anything with numpy's `.item()`) is the reward, correct from `correct_at` on.
    A mapping {part: number} sums to the reward, and its first part decides. An Outcome is checked and passed on.
    None is failed(raised); NaN, infinities, sizes above 1e6, text and other types are failed(malformed).
    """
    if result is None:
        return failure("raised", f"the reward {name!r} returned None")
    if isinstance(result, Outcome):
        return _checked(result, name)
    parts = result if isinstance(result, Mapping) else {"": result}
    try:
        values = dict(zip(distinct(map(str, parts)), map(_number, parts.values()), strict=True))
        return _from_parts(values, isinstance(result, Mapping), correct_at)
    except ValueError as error:
        return failure("malformed", f"the reward {name!r} returned {_show(result)}: {error}")


def _from_parts(values: dict[str, float], named: bool, correct_at: float) -> Outcome:
    if not values:
        raise ValueError("a mapping of parts needs at least one part")
    correct = next(iter(values.values())) >= correct_at
    return Outcome(
        reward=_number(math.fsum(values.values())),
        correct=correct,
        kind="correct" if correct else "wrong",
        parts=values if named else {},
    )


def check_outcome(outcome: Outcome) -> None:
    """Raises ValueError for an outcome whose fields contradict each other or are no plain data."""
    for field, kinds in _PLAIN.items():
        if not isinstance(getattr(outcome, field), kinds):
            raise ValueError(f"its {field} must be {' or '.join(kind.__name__ for kind in kinds)}")
    if outcome.kind == "failed":
        if outcome.cause not in CAUSES:
            raise ValueError(f"a failed outcome needs a cause out of {', '.join(CAUSES)}")
        return
    if outcome.kind not in ("correct", "wrong", "unparsable"):
        raise ValueError("its kind must be correct, wrong, unparsable or failed")
    if outcome.correct is not (outcome.kind == "correct"):
        raise ValueError("`correct` must be True when the kind is correct, and False otherwise")
    for value in (outcome.reward, *outcome.parts.values()):
        _number(value)


def _checked(outcome: Outcome, name: str) -> Outcome:
    try:
        check_outcome(outcome)
    except ValueError as error:
        return failure("malformed", f"the reward {name!r} returned {_show(outcome)}: {error}")
    if outcome.failed:
        return outcome if math.isnan(outcome.reward) and outcome.correct is None else _failed_again(outcome)
    return dataclasses.replace(outcome, parts=dict(zip(distinct(outcome.parts), outcome.parts.values(), strict=True)))


def _failed_again(outcome: Outcome) -> Outcome:
    assert outcome.cause is not None, "checked by the caller"
    return failure(outcome.cause, outcome.detail)


def _number(value: Any) -> float:
    """A finite float, or ValueError saying why not."""
    if not isinstance(value, (bool, int, float)):
        value = _scalar(value)
    if isinstance(value, int) and abs(value) > LARGEST_REWARD:  # before float(), which overflows
        raise ValueError(f"larger than {LARGEST_REWARD:g}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not finite")
    if abs(number) > LARGEST_REWARD:
        raise ValueError(f"larger than {LARGEST_REWARD:g}")
    return number


def _scalar(value: Any) -> bool | int | float:
    try:
        item = value.item()
    except Exception as error:  # a user's object may raise anything
        raise ValueError(f"{type(value).__name__} is not a number") from error
    if not isinstance(item, (bool, int, float)):
        raise ValueError(f"{type(value).__name__} is not a number")
    return item


def _show(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"an unprintable {type(value).__name__}"
    return text if len(text) <= 200 else text[:200] + "..."
