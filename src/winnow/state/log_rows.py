"""Conversion of records to rows of a run's logs and back: metrics as lines of JSON, rollouts as rows by column.

rollout_columns.py describes the columns of a rollout. JSON is strict: a number that is not finite is written as null,
and read back as NaN. This module imports no torch.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from winnow import metrics as metric_names
from winnow.records import FloatArray, Group, Outcome, Prompt, Rollout


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoggedGroup:
    """A group as it was logged: filled up to its advantages."""

    step: int
    seed: int
    group: Group
    reasons: tuple[str, ...]  # [N]
    weights: tuple[float | None, ...]  # [N]


def metrics_line(step: int, metrics: Mapping[str, float]) -> bytes:
    """A row of metrics.jsonl. Raises KeyError for a metric without a meaning."""
    metric_names.check(metrics)
    return encode({"step": step, **metrics}) + b"\n"


def check_metrics(row: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the key, unless every value is a number or null."""
    for name, value in row.items():
        if value is None:
            continue
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not abs(value) <= sys.float_info.max:
            raise ValueError(f"{name}: {type(value).__name__} where a finite number or null belongs")


def prompt_of(row: Mapping[str, Any]) -> Prompt:
    """The prompt in a row of rollouts."""
    return Prompt(
        id=row["prompt_id"],
        tokens=np.asarray(row["prompt_tokens"], dtype=np.int64),
        text=row["prompt"],
        answer=row["answer"],
        task=row["task"],
        meta=row["meta"],
    )


def rollout_of(row: Mapping[str, Any]) -> Rollout:
    """The rollout in a row. Raises ValueError where it was logged without its text."""
    if row["text"] is None:
        raise ValueError('it was logged without text and tokens, as log.rollouts = "kept"; read its row instead')
    return Rollout(
        index=row["index"],
        tokens=np.asarray(row["tokens"], dtype=np.int64),
        logprobs=np.asarray(row["logprobs"], dtype=np.float64),
        text=row["text"],
        finish=row["finish"],
        version=row["version"],
        trainable=None if row["trainable"] is None else np.asarray(row["trainable"], dtype=np.bool_),
    )


def outcome_of(row: Mapping[str, Any]) -> Outcome:
    """The outcome in a row."""
    return Outcome(
        reward=row["reward"],
        correct=row["correct"],
        kind=row["kind"],
        parts={name: math.nan if value is None else value for name, value in row["parts"].items()},
        answer=row["extracted"],
        cause=row["cause"],
        detail=row["detail"],
        seconds=row["seconds"],
        late=row["late"],
    )


def logged_group(rows: Sequence[Mapping[str, Any]]) -> LoggedGroup:
    """The group of these rows. Raises ValueError where it was logged without texts."""
    per_token = rows[0]["advantages"] is not None
    group = Group(
        prompt=prompt_of(rows[0]),
        rollouts=tuple(rollout_of(row) for row in rows),
        outcomes=tuple(outcome_of(row) for row in rows),
        keep=np.array([row["keep"] for row in rows], dtype=np.bool_),
        values=_of_value_model(rows, "values"),
        returns=_of_value_model(rows, "returns"),
        advantages=tuple(row["advantages"] for row in rows)
        if per_token
        else np.array([row["advantage"] for row in rows], dtype=np.float64),
    )
    return LoggedGroup(
        step=rows[0]["step"],
        seed=rows[0]["seed"],
        group=group,
        reasons=tuple(row["reason"] for row in rows),
        weights=tuple(row["weight"] for row in rows),
    )


def _of_value_model(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[FloatArray, ...] | None:
    """N x [L] numbers of a value model, NaN for a rollout that it has not read; None where it has read none."""
    if all(row[name] is None for row in rows):
        return None
    return tuple(
        np.full(row["length"], np.nan) if row[name] is None else np.asarray(row[name], dtype=np.float64) for row in rows
    )


def encode(data: Any) -> bytes:
    """JSON in UTF-8, or in ASCII with escapes where a text has a lone surrogate, which UTF-8 cannot encode."""
    try:
        return orjson.dumps(data, default=_other, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError:
        return json.dumps(plain(data), separators=(",", ":"), allow_nan=False).encode()


def _other(value: Any) -> Any:
    """A value that orjson cannot encode, such as a user's array that is not contiguous, as plain data."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"a row cannot contain a {type(value).__name__}: {value!r:.80}")


def plain(value: Any, text: Callable[[str], str] = str) -> Any:
    """The same data in Python's types: None for every number that JSON cannot represent, and `text` applied to every
    text. Raises TypeError for other objects.
    """
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return {plain(k, text): plain(v, text) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v, text) for v in value]
    if value is None or isinstance(value, int):
        return value
    return _other(value)
