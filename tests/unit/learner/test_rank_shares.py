"""Whose sequences are whose: without a second process, by pretending to be each rank in turn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from winnow.learner.micro_batches import common_layout, deal_parts, micro_batches
from winnow.records import MicroBatch, Prompt, Rollout, TrainingSequence

CPU = torch.device("cpu")


def rows(lengths: Sequence[int], prompt: int = 1) -> list[TrainingSequence]:
    shared = Prompt(id="p", tokens=np.arange(prompt), text="", answer=None, task="t")
    return [
        TrainingSequence(
            prompt=shared,
            rollout=Rollout(index=i, tokens=np.arange(n), logprobs=np.zeros(n), text="", finish="stop", version=0),
            group=0,
            advantage=1.0,
            weight=1.0 + i,
        )
        for i, n in enumerate(lengths)
    ]


def of_ranks(monkeypatch: pytest.MonkeyPatch, count: int, sequences: list[TrainingSequence], **options: object):
    monkeypatch.setattr("winnow.ranks.count", lambda: count)
    found: list[list[MicroBatch]] = []
    for rank in range(count):
        monkeypatch.setattr("winnow.ranks.rank", lambda rank=rank: rank)
        found.append(list(micro_batches(sequences, device=CPU, **options)))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize(("count", "lengths"), [(2, [5, 7, 1]), (4, [9, 2, 2, 2, 2, 1, 8]), (3, [4])])
def test_every_sequence_is_trained_by_one_rank(
    monkeypatch: pytest.MonkeyPatch, count: int, lengths: list[int], even: bool
) -> None:
    found = of_ranks(monkeypatch, count, rows(lengths), tokens=10, even=even)
    trained = [s.rollout.index for of_rank in found for mb in of_rank if mb.trained_tokens for s in mb.sequences]
    assert sorted(trained) == list(range(len(lengths)))
    if even:
        assert len({len(of_rank) for of_rank in found}) == 1


def test_what_only_fills_up_weighs_nothing_and_trains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = of_ranks(monkeypatch, 2, rows([4]), tokens=10, even=True)
    (filler,) = first
    assert filler.trained_tokens == 0
    assert not filler.weights.any()
    assert len(filler.sequences) == 1


def test_seven_kept_of_one_prompt_and_one_of_another_are_shared_by_tokens() -> None:
    sequences = rows([4] * 8)
    assert deal_parts(sequences, lambda part: [list(range(len(part)))]) == [[list(range(8))]]


def test_all_ranks_read_in_one_layout() -> None:
    """Two passes of the backbone where a prompt is read once, so it is read once on all of them or on none."""
    sequences = rows([8] * 6, prompt=100)
    assert common_layout("shared", sequences, [[[0, 1, 2]], [[3, 4, 5]]], 0) == "shared"
    assert (
        common_layout("shared", sequences, [[[0, 1, 2, 3, 4]], [[5]]], 0) == "padded"
    )  # nothing is saved with one rollout
    assert (
        common_layout("shared", sequences, [[[0, 1, 2], [3, 4, 5]], [[0, 1, 2]]], 1) == "padded"
    )  # one rank has no second
    assert common_layout("padded", sequences, [[[0, 1, 2]], [[3, 4, 5]]], 0) == "padded"
    assert common_layout("packed", sequences, [[[0]], [[1]]], 0) == "packed"
    short = rows([1] * 6, prompt=100)  # nothing is read after the prompt
    assert common_layout("shared", short, [[[0, 1, 2]], [[3, 4, 5]]], 0) == "padded"
