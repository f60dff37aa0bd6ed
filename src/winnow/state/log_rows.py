"""Converts the records of a step to rows of JSON, and rows back to the same records.

A row of rollouts.jsonl is one rollout, complete with its prompt, so that a program may stream, filter or
re-score the file line by line; the rows of a group follow each other, so that groups can be rebuilt. It holds

    step, seed                      of the step and of the run: with both, a selector's random numbers can be redrawn
    prompt_id, prompt, prompt_tokens, answer, task, meta
    count                           rollouts of this prompt in this step
    index, text, tokens, logprobs, finish, version, trainable
    outcome                         reward, correct, kind, parts, answer, cause, detail, seconds, late
    keep, reason                    reason: kept | not selected | failed: {cause} | zero advantage | not scheduled
                                    (the last: kept, but without a token to train)
    advantage                       a number, or a list with one per token
    weight                          in the step's first epoch; null when it reached no batch

Numbers are written in full, so reading gives the same float64 back. The JSON is strict: a number that is not finite is
null and is read back as NaN. Text is UTF-8, and a row ends at "\n" alone, which no row has inside (U+2028 may
be): whatever a model writes survives, lone surrogates too. This module imports no torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from winnow import metrics as words
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
    words.check(metrics)
    return encode({"step": step, **metrics}) + b"\n"


def rollout_lines(
    step: int, seed: int, place: int, group: Group, weights: Mapping[tuple[int, int], float]
) -> Iterator[bytes]:
    """The rows of one group; what they share is encoded once. `place` is its position in the step.

    `weights` are by `TrainingSequence.key`. Raises ValueError for a group that is not filled up to its advantages.
    """
    if group.outcomes is None or group.keep is None or group.advantages is None:
        raise ValueError(f"group {group.prompt.id!r} is logged before its outcomes, keep and advantages are filled")
    shared = encode(_shared(step, seed, group))[:-1]
    for rollout, outcome, keep, advantage in zip(
        group.rollouts, group.outcomes, group.keep.tolist(), group.advantages, strict=True
    ):
        weight = weights.get((place, rollout.index))
        own = {
            **_rollout_fields(rollout),
            "outcome": _outcome_fields(outcome),
            "keep": keep,
            "reason": _reason(outcome, keep, advantage, weight),
            "advantage": advantage,
            "weight": weight,
        }
        yield b"".join((shared, b",", encode(own)[1:], b"\n"))


def _shared(step: int, seed: int, group: Group) -> dict[str, Any]:
    prompt = group.prompt
    return {
        "step": step,
        "seed": seed,
        "prompt_id": prompt.id,
        "prompt": prompt.text,
        "prompt_tokens": prompt.tokens,
        "answer": prompt.answer,
        "task": prompt.task,
        "meta": prompt.meta,
        "count": len(group.rollouts),
    }


def _rollout_fields(rollout: Rollout) -> dict[str, Any]:
    return {
        "index": rollout.index,
        "text": rollout.text,
        "tokens": np.ascontiguousarray(rollout.tokens),
        "logprobs": np.ascontiguousarray(rollout.logprobs),
        "finish": rollout.finish,
        "version": rollout.version,
        "trainable": rollout.trainable,
    }


def _outcome_fields(outcome: Outcome) -> dict[str, Any]:
    """The fields of an Outcome by hand: dataclasses.asdict copies deeply, and orjson is slower on dataclasses."""
    return {
        "reward": outcome.reward,
        "correct": outcome.correct,
        "kind": outcome.kind,
        "parts": outcome.parts,
        "answer": outcome.answer,
        "cause": outcome.cause,
        "detail": outcome.detail,
        "seconds": outcome.seconds,
        "late": outcome.late,
    }


def _reason(outcome: Outcome, keep: bool, advantage: float | FloatArray, weight: float | None) -> str:
    if outcome.failed:
        return f"failed: {outcome.cause}"
    if not keep:
        return "not selected"
    if weight is not None:
        return "kept"
    silent = not advantage.any() if isinstance(advantage, np.ndarray) else advantage == 0.0
    return "zero advantage" if silent else "not scheduled"


def prompt_of(row: Mapping[str, Any]) -> Prompt:
    """The prompt in a row of a rollouts file."""
    return Prompt(
        id=row["prompt_id"],
        tokens=np.array(row["prompt_tokens"], dtype=np.int64),
        text=row["prompt"],
        answer=row["answer"],
        task=row["task"],
        meta=row["meta"],
    )


def rollout_of(row: Mapping[str, Any]) -> Rollout:
    """The rollout in a row of a rollouts file."""
    return Rollout(
        index=row["index"],
        tokens=np.array(row["tokens"], dtype=np.int64),
        logprobs=np.array(row["logprobs"], dtype=np.float64),
        text=row["text"],
        finish=row["finish"],
        version=row["version"],
        trainable=None if row["trainable"] is None else np.array(row["trainable"], dtype=np.bool_),
    )


def outcome_of(row: Mapping[str, Any]) -> Outcome:
    """The outcome in a row of a rollouts file."""
    outcome = row["outcome"]
    parts = {name: _number(value) for name, value in outcome["parts"].items()}
    return Outcome(**{**outcome, "reward": _number(outcome["reward"]), "parts": parts})


def logged_group(rows: Sequence[Mapping[str, Any]]) -> LoggedGroup:
    """The group whose rows these are."""
    advantages: list[Any] = [row["advantage"] for row in rows]
    group = Group(
        prompt=prompt_of(rows[0]),
        rollouts=tuple(rollout_of(row) for row in rows),
        outcomes=tuple(outcome_of(row) for row in rows),
        keep=np.array([row["keep"] for row in rows], dtype=np.bool_),
        advantages=tuple(np.array(a, dtype=np.float64) for a in advantages)
        if isinstance(advantages[0], list)
        else np.array(advantages, dtype=np.float64),
    )
    return LoggedGroup(
        step=rows[0]["step"],
        seed=rows[0]["seed"],
        group=group,
        reasons=tuple(row["reason"] for row in rows),
        weights=tuple(row["weight"] for row in rows),
    )


def encode(data: Mapping[str, Any]) -> bytes:
    """JSON in UTF-8; or in ASCII with escapes, where a text holds a lone surrogate, which UTF-8 cannot encode."""
    try:
        return orjson.dumps(data, default=_other, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError:
        return json.dumps(_plain(data), separators=(",", ":"), allow_nan=False).encode()


def _other(value: Any) -> Any:
    """For types that orjson cannot encode: a user's reward or metadata may hold arrays that are not contiguous."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"a row cannot hold a {type(value).__name__}: {value!r:.80}")


def _plain(value: Any) -> Any:
    """The same data in Python's own types, with null for every number that JSON cannot represent."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if value is None or isinstance(value, (str, int)):
        return value
    return _other(value)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
