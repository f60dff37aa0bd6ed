"""A judged rollout of an evaluation as a line of JSON, and back; each line is checked when it is read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pydantic

from winnow.config import Section
from winnow.errors import DataError
from winnow.records import Cause, Finish, Group, Kind, Outcome, Prompt, Rollout
from winnow.training.judged import Judged, judged_row

Row = Mapping[str, Any]


class _Line(Section):
    mode: str
    prompt_id: str
    prompt: str
    answer: Any
    task: str
    meta: dict[str, Any]
    index: int
    text: str
    length: int
    finish: Finish
    kind: Kind
    correct: bool | None
    reward: float | None
    parts: dict[str, float]
    answer_read: str | None
    cause: Cause | None
    detail: str
    late: bool


def rows_of(mode: str, groups: Sequence[Group]) -> Iterator[dict[str, Any]]:
    """One row per rollout. `mode` is "sampled" or "greedy". Rows have no times, so they depend on the machine's speed
    only if a verdict does.
    """
    for group in groups:
        for rollout, outcome in zip(group.rollouts, group.outcomes or (), strict=True):
            yield _row(mode, group.prompt, rollout, outcome)


def parse_row(line: bytes, where: str) -> dict[str, Any]:
    """The row of a line. Raises DataError, with its place, for a line that `rows_of` would not write."""
    try:
        row: dict[str, Any] = json.loads(line)
        _Line.model_validate(row)
    except (ValueError, RecursionError, pydantic.ValidationError) as error:
        first = error.errors()[0] if isinstance(error, pydantic.ValidationError) else None
        what = f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}" if first else str(error)
        raise DataError(
            f"{where}: this line is no rollout of an evaluation ({what})",
            remedy="remove the file, then resume the evaluation to sample its task again",
            code="data.malformed",
        ) from error
    return row


def group_by_problem(rows: Sequence[Row], mode: str) -> dict[str, list[Judged]]:
    """The judged rollouts of each problem, by its id, in the order of the rows."""
    by_id: dict[str, list[Judged]] = {}
    for row in rows:
        if row["mode"] == mode:
            by_id.setdefault(row["prompt_id"], []).append(judged_row(row))
    return by_id


def _row(mode: str, prompt: Prompt, rollout: Rollout, outcome: Outcome) -> dict[str, Any]:
    return {
        "mode": mode,
        "prompt_id": prompt.id,
        "prompt": prompt.text,
        "answer": prompt.answer,
        "task": prompt.task,
        "meta": prompt.meta,
        "index": rollout.index,
        "text": rollout.text,
        "length": len(rollout.tokens),
        "finish": rollout.finish,
        "kind": outcome.kind,
        "correct": outcome.correct,
        "reward": None if math.isnan(outcome.reward) else outcome.reward,
        "parts": outcome.parts,
        "answer_read": outcome.answer,
        "cause": outcome.cause,
        "detail": outcome.detail,
        "late": outcome.late,
    }
