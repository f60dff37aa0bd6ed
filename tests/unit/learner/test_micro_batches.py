from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from winnow.learner.micro_batches import micro_batches
from winnow.records import FloatArray, MicroBatch, Prompt, Rollout, TrainingSequence

CPU = torch.device("cpu")


def row(
    prompt: int,
    completion: int,
    *,
    index: int = 0,
    advantage: float | FloatArray = 1.0,
    weight: float = 1.0,
    trainable: Sequence[bool] | None = None,
    old: Sequence[float] | None = None,
) -> TrainingSequence:
    return TrainingSequence(
        prompt=Prompt(id="p", tokens=np.arange(prompt), text="", answer=None, task="t"),
        rollout=Rollout(
            index=index,
            tokens=np.arange(completion),
            logprobs=-np.arange(completion, dtype=np.float64),
            text="",
            finish="stop",
            version=0,
            trainable=None if trainable is None else np.array(trainable),
        ),
        group=0,
        advantage=advantage,
        weight=weight,
        old_logprobs=None if old is None else np.array(old),
    )


def lengths(mbs: Sequence[MicroBatch]) -> list[list[int]]:
    return [[len(r.prompt.tokens) + len(r.rollout.tokens) for r in mb.sequences] for mb in mbs]


def test_rows_are_bucketed_and_cut_at_the_budget() -> None:
    rows = [row(1, n - 1, index=n) for n in (5, 12, 3, 6, 2, 5)]
    assert lengths(micro_batches(rows, tokens=12, device=CPU)) == [[12], [6, 5], [5, 3], [2]]
    assert lengths(micro_batches(rows, tokens=72, device=CPU)) == [[12, 6, 5, 5, 3, 2]]


def test_a_row_above_the_budget_is_a_part_by_itself() -> None:
    assert lengths(micro_batches([row(8, 12), row(2, 2), row(2, 1)], tokens=8, device=CPU)) == [[20], [4, 3]]


def test_no_rows_no_micro_batches() -> None:
    assert list(micro_batches([], tokens=8, device=CPU)) == []


def test_micro_batches_are_made_on_request() -> None:
    pieces = iter(micro_batches([row(1, 2, index=i) for i in range(3)], tokens=3, device=CPU))
    first = weakref.ref(next(pieces).sequence_index)
    assert first() is None, "only its consumer holds a reference"
    assert [mb.sequences[0].rollout.index for mb in pieces] == [1, 2]


def test_flat_fields_follow_the_rows() -> None:
    rows = [
        row(1, 2, advantage=-1.0, weight=0.5, trainable=[False, True], old=[-3.0, -4.0]),
        row(1, 3, advantage=np.array([1.0, 2.0, 3.0]), weight=0.25, old=[-5.0, -6.0, -7.0]),
    ]
    (mb,) = micro_batches(rows, tokens=100, device=CPU, dtype=torch.float64)
    assert mb.sequences == (rows[1], rows[0])
    assert mb.sequence_index.tolist() == [0, 0, 0, 1, 1]
    assert mb.trained is not None
    assert mb.trained.tolist() == [0, 1, 2, 4]
    assert mb.trained_tokens == 4
    assert mb.advantages.tolist() == [1, 2, 3, -1, -1]
    assert mb.weights.tolist() == [0.25, 0.25, 0.25, 0.5, 0.5]
    assert mb.behaviour_logprobs.tolist() == [0, -1, -2, 0, -1]
    assert mb.old_logprobs is not None
    assert mb.old_logprobs.tolist() == [-5, -6, -7, -3, -4]
    assert mb.ref_logprobs is None


def test_old_logprobs_only_when_every_row_has_them() -> None:
    (mb,) = micro_batches([row(1, 1, old=[-1.0]), row(1, 1)], tokens=100, device=CPU)
    assert mb.old_logprobs is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floats_have_the_requested_dtype(dtype: torch.dtype) -> None:
    (mb,) = micro_batches([row(1, 2, old=[-1.0, -2.0])], tokens=100, device=CPU, dtype=dtype)
    floats = (mb.advantages, mb.weights, mb.behaviour_logprobs, mb.old_logprobs)
    assert all(isinstance(t, Tensor) and t.dtype == dtype for t in floats)
    assert (mb.sequence_index.dtype, mb.trained, mb.trained_tokens) == (torch.int64, None, 2)
