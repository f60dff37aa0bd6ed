"""One pass over sequences that says a number for each of their tokens, without gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
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
    sequences: Sequence[TrainingSequence],
    forward: Callable[[MicroBatch], Tensor],
    *,
    module: PolicyModule | None = None,
    what: str,
) -> Found:
    """`forward` [T] of the micro-batches of each distinct sequence, passed once, by one rank, and told to all.

    `module` is what computes where it is not the model's own; `what` names the exchange in ranks/bytes_{what}.
    """
    found = {}
    for mb in model.micro_batches(list({sequence.key: sequence for sequence in sequences}.values())):
        lengths = [len(sequence.rollout.tokens) for sequence in mb.sequences]
        pieces = torch.split(forward(mb).cpu(), lengths)
        if mb.mask.any():  # it is not there only to make as many passes as other ranks
            found.update({sequence.key: piece.numpy() for sequence, piece in zip(mb.sequences, pieces, strict=True)})
    reshard(module or model.module)
    every = ranks.each(found, what=what)
    return {key: numbers.astype(np.float64) for of_rank in every for key, numbers in of_rank.items()}
