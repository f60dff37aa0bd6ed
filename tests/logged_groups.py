"""The groups of a run, rebuilt from its files of rollouts as they were logged."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from winnow.records import FloatArray, Group, Outcome
from winnow.state.log import prompt_of, rollout_of
from winnow.state.logbook import read_rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoggedGroup:
    """A group as it was logged: filled up to its advantages."""

    step: int
    seed: int
    group: Group
    reasons: tuple[str, ...]  # [N]
    weights: tuple[float | None, ...]  # [N]


def read_rollouts(path: Path, step: int | None = None) -> Iterator[LoggedGroup]:
    """The groups of a run as they were logged, or those of one step. Raises as `read_rows` and `logged_group`."""
    for _, of_group in itertools.groupby(read_rows(path, step), key=lambda row: (row["step"], row["prompt_id"])):
        yield logged_group(list(of_group))


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
