"""How sequences are divided among ranks for a pass through the policy.

Every rank computes the same division from the same sequences, so the division needs no exchange. Where the policy is
sharded, a forward pass is an exchange of all ranks. Every rank then makes as many passes as the rank with most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from winnow import ranks
from winnow.algos.division import in_runs
from winnow.learner.model_input import AnySequence, length
from winnow.records import TrainingSequence

S = TypeVar("S", bound=AnySequence)
Cut = Callable[[Sequence[S]], list[list[int]]]  # sequences -> places of those in each micro-batch


def deal_parts(sequences: Sequence[S], cut: Cut[S]) -> list[list[list[int]]]:
    """[ranks][micro-batches] places of sequences: `cut` of each rank's share, about equal in tokens."""
    shares = in_runs([length(sequence) for sequence in sequences], ranks.count())
    return [[[share[i] for i in part] for part in cut([sequences[place] for place in share])] for share in shares]


def missing_passes(every: Sequence[Sequence[object]]) -> int:
    """Number of micro-batches that this rank has fewer than the rank with most."""
    return max(map(len, every)) - len(every[ranks.rank()])


def without_training(sequence: TrainingSequence) -> TrainingSequence:
    """A copy of the sequence with weight 0 and no trained token, which adds nothing to a gradient."""
    nothing = np.zeros(len(sequence.rollout.tokens), dtype=np.bool_)
    return dataclasses.replace(sequence, weight=0.0, rollout=dataclasses.replace(sequence.rollout, trainable=nothing))


def shortest(sequences: Sequence[S]) -> S:
    """The sequence with the fewest tokens, which is cheapest to pass."""
    return min(sequences, key=length)
