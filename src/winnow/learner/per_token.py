"""A pass over sequences that computes a number for each of their tokens, without gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnow import ranks
from winnow.learner.policy_module import PolicyModule
from winnow.learner.sequence_model import SequenceModel
from winnow.learner.sharding import reshard
from winnow.records import FloatArray, MicroBatch, TrainingSequence

PerSequence = Mapping[tuple[int, int], FloatArray]  # sequence key -> [L]


@torch.no_grad()
def per_token(
    model: SequenceModel,
    batches: Sequence[Sequence[TrainingSequence]],
    forward: Callable[[MicroBatch], Tensor],
    *,
    module: PolicyModule | None = None,
    what: str,
) -> list[PerSequence]:
    """The results [T] of `forward` for every batch, by sequence.

    A batch is divided into the micro-batches of its update. One rank computes each of them, and all ranks get the
    results. `module` is the module that `forward` computes with, where that is not the model's own. `what` names the
    exchange in the metric ranks/bytes_{what}.
    """
    local = [_of_own_share(model, sequences, forward) for sequences in batches]
    reshard(module or model.module)
    every = ranks.gather_from_all(local, what=what)
    return [
        {key: numbers.astype(np.float64) for of_rank in every for key, numbers in of_rank[place].items()}
        for place in range(len(batches))
    ]


def _of_own_share(
    model: SequenceModel, sequences: Sequence[TrainingSequence], forward: Callable[[MicroBatch], Tensor]
) -> Mapping[tuple[int, int], NDArray[np.floating]]:
    """[L] of those sequences of a batch that this rank passes, in the precision that `forward` returns."""
    results = {}
    for mb in model.micro_batches(sequences):
        lengths = [len(sequence.rollout.tokens) for sequence in mb.sequences]
        pieces = torch.split(forward(mb).cpu(), lengths)
        if mb.mask.any():  # else it only makes up the number of passes of other ranks
            results.update({sequence.key: piece.numpy() for sequence, piece in zip(mb.sequences, pieces, strict=True)})
    return results
