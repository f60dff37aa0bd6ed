"""Divide a batch's sequences into micro-batches that fit in memory. The division never changes a gradient.

Each of several ranks gets the micro-batches of its share. Where the policy is sharded, every forward pass is an
exchange of all ranks. All ranks then get equally many micro-batches, some without trained tokens, and read those of the
same number in the same layout.

Every rank computes the same division from the same sequences, so the division needs no exchange.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from winnow import ranks
from winnow.learner.model_input import AnySequence, Layout, length, sharing_pays, trained
from winnow.models.device import to_device
from winnow.ranks import in_runs
from winnow.records import FloatArray, MicroBatch, TrainingSequence

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


def micro_batches(
    sequences: Sequence[TrainingSequence],
    *,
    tokens: int,
    layout: Layout = "padded",
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    even: bool = False,
) -> Iterator[MicroBatch]:
    """This rank's micro-batches, flat over their completion tokens, made one at a time.

    The layout decides how the share is divided: by `fill` where it is "packed", else by `cut`. With `even`, every rank
    gets the same number, and all ranks use the same layout for each.

    Floats have dtype `dtype`.
    """
    every = deal_parts(sequences, partial(fill if layout == "packed" else cut, tokens=tokens))
    parts = [[sequences[i] for i in part] for part in every[ranks.rank()]]
    if even:
        parts += [[without_training(shortest(sequences))] for _ in range(missing_passes(every))]
    for number, part in enumerate(parts):
        common = common_layout(layout, sequences, every, number) if even else None
        yield _flatten(part, common, device, dtype)


def common_layout(
    layout: Layout, sequences: Sequence[AnySequence], every: Sequence[Sequence[Sequence[int]]], number: int
) -> Layout:
    """The layout in which all ranks read their micro-batches of this number. "shared" takes two passes of the backbone,
    so it is used only where every rank makes both.
    """
    if layout != "shared":
        return layout
    parts = [[sequences[i] for i in of_rank[number]] for of_rank in every if number < len(of_rank)]
    two_passes = all(sharing_pays(part) and any(len(s.rollout.tokens) > 1 for s in part) for part in parts)
    return "shared" if two_passes and len(parts) == len(every) else "padded"


def cut(sequences: Sequence[AnySequence], *, tokens: int) -> list[list[int]]:
    """Positions of sequences in parts, bucketed by length: a part's number of sequences x its longest is at most
    `tokens`.

    Prompt, completion and padding count. A sequence longer than `tokens` is a part by itself. Without sequences the
    list is empty.
    """
    lengths = [length(sequence) for sequence in sequences]
    left = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)  # stable: equal lengths keep order
    parts = []
    while left:
        fitting = max(1, tokens // lengths[left[0]])
        parts.append(left[:fitting])
        left = left[fitting:]
    return parts


def fill(sequences: Sequence[AnySequence], *, tokens: int) -> list[list[int]]:
    """Positions of sequences in parts without padding: prompts and completions of a part total at most `tokens`.

    A prompt counts once for each of its sequences, although a packed row contains it only once. Sequences of a prompt
    are adjacent, and a part is filled until the next sequence does not fit. A sequence longer than `tokens` is a part
    by itself. Without sequences the list is empty.
    """
    of_prompt: dict[int, list[int]] = {}
    for place, sequence in enumerate(sequences):
        of_prompt.setdefault(id(sequence.prompt), []).append(place)
    parts, room = list[list[int]](), 0
    for place in itertools.chain.from_iterable(of_prompt.values()):
        needed = length(sequences[place])
        if not parts or needed > room:
            parts.append([])
            room = tokens
        parts[-1].append(place)
        room -= needed
    return parts


def _flatten(
    sequences: Sequence[TrainingSequence], layout: Layout | None, device: torch.device, dtype: torch.dtype
) -> MicroBatch:
    lengths = np.array([len(sequence.rollout.tokens) for sequence in sequences])
    index = np.repeat(np.arange(len(sequences)), lengths)
    mask = trained(sequences)

    def floats(values: Iterable[FloatArray]) -> Tensor:
        return to_device(np.concatenate(list(values)), device).to(dtype)

    def floats_if_filled(name: str) -> Tensor | None:
        values = [getattr(sequence, name) for sequence in sequences]
        return None if any(value is None for value in values) else floats(values)

    weights = np.array([sequence.weight for sequence in sequences])[index]
    return MicroBatch(
        sequences=tuple(sequences),
        sequence_index=to_device(index, device),
        advantages=floats(np.full(n, sequence.advantage) for n, sequence in zip(lengths, sequences, strict=True)),
        weights=floats([weights]),
        behaviour_logprobs=floats(sequence.rollout.logprobs for sequence in sequences),
        old_logprobs=floats_if_filled("old_logprobs"),
        ref_logprobs=floats_if_filled("ref_logprobs"),
        values=floats_if_filled("values"),
        returns=floats_if_filled("returns"),
        trained=None if mask.all() else to_device(np.flatnonzero(mask), device),
        layout=layout,
    )
