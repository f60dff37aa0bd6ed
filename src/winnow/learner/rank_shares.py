"""What a rank passes through the policy: its share of the sequences that all ranks know.

Every pass of the policy deals the same sequences the same way on every rank, so the shares need no exchange. Where the
policy itself is sharded, a forward is an exchange of all ranks: each then makes as many as the one that has most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from winnow import ranks
from winnow.algos.dealing import in_runs
from winnow.learner.model_input import AnySequence, length
from winnow.records import TrainingSequence

S = TypeVar("S", bound=AnySequence)
Cut = Callable[[Sequence[S]], list[list[int]]]  # sequences -> places of those that go through the policy together


def dealt(sequences: Sequence[S], cut: Cut[S]) -> list[list[list[int]]]:
    """[ranks][micro-batches] places of sequences: about as many tokens for each rank, cut as `cut` says."""
    shares = in_runs([length(sequence) for sequence in sequences], ranks.count())
    return [[[share[i] for i in part] for part in cut([sequences[place] for place in share])] for share in shares]


def passes_short(every: Sequence[Sequence[object]]) -> int:
    """How many micro-batches this rank has fewer than the one that has most."""
    return max(map(len, every)) - len(every[ranks.rank()])


def idle(sequence: TrainingSequence) -> TrainingSequence:
    """The sequence as one of which nothing is learned: its weight is 0, and no token of it is trained."""
    nothing = np.zeros(len(sequence.rollout.tokens), dtype=np.bool_)
    return dataclasses.replace(sequence, weight=0.0, rollout=dataclasses.replace(sequence.rollout, trainable=nothing))


def shortest(sequences: Sequence[S]) -> S:
    """The one that costs least to pass."""
    return min(sequences, key=length)
