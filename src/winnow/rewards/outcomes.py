"""Converts the return value of a reward function into one `Outcome`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any

import numpy as np

from winnow.bounds import LARGEST_REWARD
from winnow.metrics import distinct
from winnow.records import CAUSES, Cause, Kind, Outcome

_PLAIN: Mapping[str, tuple[type, ...]] = {
    "parts": (dict,), "answer": (str, NoneType), "detail": (str,), "seconds": (int, float), "late": (bool,)
}  # fmt: skip


def failure(cause: Cause, detail: str) -> Outcome:
    """The outcome if there is no verdict: reward NaN, correct None."""
    return Outcome(reward=math.nan, correct=None, kind="failed", cause=cause, detail=detail, late=cause == "timeout")


def judged(correct: bool, reward: float | None = None, **fields: Any) -> Outcome:
    """The outcome of a verdict, with a reward of 1 or 0 unless it is given; `fields` are the other ones."""
    kind: Kind = "correct" if correct else "wrong"
    return Outcome(reward=float(correct) if reward is None else reward, correct=correct, kind=kind, **fields)


def cut() -> Outcome:
    """The outcome of a rollout that was cut while it was sampled: reward NaN, correct None."""
    return Outcome(reward=math.nan, correct=None, kind="cut")


def reason(outcome: Outcome) -> str:
    """The reason for a verdict, in one line."""
    detail = outcome.detail.strip().rpartition("\n")[2].strip()
    if outcome.failed:
        return f"{outcome.cause}: {detail}"
    if outcome.kind == "unparsable":
        return "no answer could be read"
    return detail or ("the gold" if outcome.correct else "not the gold")


def to_outcome(result: Any, *, name: str, correct_at: float = 1.0) -> Outcome:
    """The return value of the reward `name` as an Outcome; never raises.

    A number (int, float, bool, or anything with numpy's `.item()`) is the reward, correct from `correct_at` on.
    A mapping {part: number} sums to the reward, and its first part decides. An Outcome is checked.
    None is failed(raised); NaN, infinities, sizes above 1e6, text and other types are failed(malformed).
    """
    if result is None:
        return failure("raised", f"the reward {name!r} returned None")
    try:
        if isinstance(result, Outcome):
            plain = _plain(result)
            check_outcome(plain)
            return plain
        named = isinstance(result, Mapping)
        parts = result if named else {"": result}
        values = dict(zip(distinct(map(str, parts)), map(_number, parts.values()), strict=True))
        if not values:
            raise ValueError("a mapping of parts needs at least one part")
        correct = next(iter(values.values())) >= correct_at
        return judged(correct, _number(math.fsum(values.values())), parts=values if named else {})
    except Exception as error:  # a user's object may raise anything
        return failure("malformed", f"the reward {name!r} returned {_show(result)}: {_show(error, str)}")


def check_outcome(outcome: Outcome) -> None:
    """Raises ValueError for an outcome whose fields contradict each other or are no plain data."""
    _check_types(outcome)
    if outcome.kind == "failed":
        if outcome.cause not in CAUSES:
            raise ValueError(f"a failed outcome needs a cause out of {', '.join(CAUSES)}")
        return
    if outcome.kind not in ("correct", "wrong", "unparsable"):
        raise ValueError("its kind must be correct, wrong, unparsable or failed")
    if outcome.cause is not None:
        raise ValueError("its cause must be None unless its kind is failed; `detail` is for the reason")
    if outcome.correct is not (outcome.kind == "correct"):
        raise ValueError("`correct` must be True when the kind is correct, and False otherwise")
    for value in (outcome.reward, *outcome.parts.values()):
        _number(value)


def _check_types(outcome: Outcome) -> None:
    for field, kinds in _PLAIN.items():
        if not isinstance(getattr(outcome, field), kinds):
            raise ValueError(f"its {field} must be {' or '.join(kind.__name__ for kind in kinds)}")
    if not all(isinstance(name, str) for name in outcome.parts):
        raise ValueError("the names of its parts must be str")
    if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in outcome.parts.values()):
        raise ValueError("its parts must be numbers")


def _plain(outcome: Outcome) -> Outcome:
    """The outcome as a log contains it: Python's numbers, and names fit for metrics. A failed one has no reward."""
    parts = outcome.parts
    if isinstance(parts, dict) and all(isinstance(name, str) for name in parts):
        parts = dict(zip(distinct(parts), map(_number, parts.values()), strict=True))
    plain = dataclasses.replace(outcome, parts=parts, seconds=_number(outcome.seconds))
    if plain.failed:
        return dataclasses.replace(plain, reward=math.nan, correct=None)
    correct: Any = outcome.correct
    correct = bool(correct) if isinstance(correct, np.bool_) else correct
    return dataclasses.replace(plain, reward=_number(outcome.reward), correct=correct)


def _number(value: Any) -> float:
    """The value as a finite float; ValueError with the reason if it is none."""
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


def _show(value: Any, as_text: Callable[[Any], str] = repr) -> str:
    try:
        text = as_text(value)
    except Exception:
        text = f"an unprintable {type(value).__name__}"
    return text if len(text) <= 200 else text[:200] + "..."
