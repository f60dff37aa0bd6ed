"""A pass over sequences that gives a number for each of their tokens, without gradients."""

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

Found = Mapping[tuple[int, int], FloatArray]  # [L] per sequence, by its key


@torch.no_grad()
def per_token(
    model: SequenceModel,
    batches: Sequence[Sequence[TrainingSequence]],
    forward: Callable[[MicroBatch], Tensor],
    *,
    module: PolicyModule | None = None,
    what: str,
) -> list[Found]:
    """Of each batch `forward` [T] of its micro-batches, by sequence. These are the micro-batches of an update of the
    batch: each is passed by one rank, and all ranks get the results.

    `module` is what computes where it is not the model's own; `what` names the exchange in ranks/bytes_{what}.
    """
    found = [_of_own_share(model, sequences, forward) for sequences in batches]
    reshard(module or model.module)
    every = ranks.each(found, what=what)
    return [
        {key: numbers.astype(np.float64) for of_rank in every for key, numbers in of_rank[place].items()}
        for place in range(len(batches))
    ]


def _of_own_share(
    model: SequenceModel, sequences: Sequence[TrainingSequence], forward: Callable[[MicroBatch], Tensor]
) -> Mapping[tuple[int, int], NDArray[np.floating]]:
    """[L] of those sequences of a batch that this rank passes, in the precision that `forward` returns."""
    found = {}
    for mb in model.micro_batches(sequences):
        lengths = [len(sequence.rollout.tokens) for sequence in mb.sequences]
        pieces = torch.split(forward(mb).cpu(), lengths)
        if mb.mask.any():  # it is not there only to make as many passes as other ranks
            found.update({sequence.key: piece.numpy() for sequence, piece in zip(mb.sequences, pieces, strict=True)})
    return found
