"""From the rows of a batch to micro-batches that fit in memory. Where the cuts fall never changes a gradient."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from winnow.algos.estimators import truncated_importance
from winnow.records import BoolArray, FloatArray, IntArray, MicroBatch, TrainingSequence


def micro_batches(
    batch_rows: Sequence[TrainingSequence],
    *,
    tokens: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    max_importance: float = 0.0,
) -> list[MicroBatch]:
    """Rows bucketed by length and cut so that rows x longest <= `tokens`, prompt, completion and padding counted.

    A row longer than `tokens` gets a micro-batch of its own. Floats come as `dtype`. No rows, no micro-batches.
    With `max_importance`, `importance` is p_old / p_behaviour up to it; else 1.
    """
    rows = sorted(batch_rows, key=_length, reverse=True)  # stable: equal lengths keep their order
    parts = []
    while rows:
        fitting = max(1, tokens // _length(rows[0]))
        parts.append(_flatten(rows[:fitting], device, dtype, max_importance))
        rows = rows[fitting:]
    return parts


def _length(row: TrainingSequence) -> int:
    return len(row.prompt.tokens) + len(row.rollout.tokens)


def _flatten(
    rows: Sequence[TrainingSequence], device: torch.device, dtype: torch.dtype, max_importance: float
) -> MicroBatch:
    lengths = np.array([len(row.rollout.tokens) for row in rows])
    sequence = np.repeat(np.arange(len(rows)), lengths)

    def floats(values: Iterable[FloatArray]) -> Tensor:
        return torch.from_numpy(np.concatenate(list(values))).to(device=device, dtype=dtype)

    def floats_if_filled(name: str) -> Tensor | None:
        values = [getattr(row, name) for row in rows]
        return None if any(value is None for value in values) else floats(values)

    weights = np.array([row.weight for row in rows])[sequence]
    return MicroBatch(
        sequences=tuple(rows),
        sequence_index=torch.from_numpy(sequence).to(device),
        mask=torch.from_numpy(np.concatenate([_mask(row) for row in rows])).to(device),
        advantages=floats(_advantages(rows, lengths)),
        weights=floats([weights]),
        importance=floats(_importance(rows, lengths, max_importance)),
        behaviour_logprobs=floats(row.rollout.logprobs for row in rows),
        old_logprobs=floats_if_filled("old_logprobs"),
        ref_logprobs=floats_if_filled("ref_logprobs"),
    )


def _mask(row: TrainingSequence) -> BoolArray:
    mask = row.rollout.trainable
    return np.ones(len(row.rollout.tokens), dtype=np.bool_) if mask is None else mask


def _importance(rows: Sequence[TrainingSequence], lengths: IntArray, most: float) -> list[FloatArray]:
    pairs = [(row.old_logprobs, row.rollout.logprobs) for row in rows if row.old_logprobs is not None]
    if most == 0.0 or len(pairs) < len(rows):  # the latter while the old log-probs themselves are computed
        return [np.ones(lengths.sum())]
    return [truncated_importance(old, behaviour, most=most) for old, behaviour in pairs]


def _advantages(rows: Sequence[TrainingSequence], lengths: IntArray) -> list[FloatArray]:
    if all(isinstance(row.advantage, float) for row in rows):
        return [np.repeat([row.advantage for row in rows], lengths)]
    return [np.full(length, row.advantage) for length, row in zip(lengths, rows, strict=True)]
