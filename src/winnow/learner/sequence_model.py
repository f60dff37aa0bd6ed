"""Base of policy and value model: a model that reads a batch's sequences in micro-batches of this rank's share.

A pass without gradients computes a number for each token of the sequences.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from winnow import ranks
from winnow.learner.micro_batches import micro_batches
from winnow.learner.model_input import Layout, hidden_states
from winnow.learner.policy_module import PolicyModule
from winnow.learner.sharding import reshard, shard
from winnow.models.backbone import reads_in_pieces
from winnow.models.saved_weights import SavedWeights
from winnow.records import MicroBatch, PerSequence, TrainingSequence


class SequenceModel(ABC):
    """A module, and how it reads sequences.

    `pad_token` only fills space. Padding is identified by position, so it may be a token that also ends rollouts.
    """

    def __init__(self, module: PolicyModule, *, pad_token: int, tokens_per_micro_batch: int) -> None:
        self.module = module
        self.sharded = False
        self.pad_token = pad_token
        self.tokens_per_micro_batch = tokens_per_micro_batch
        # transformers computes norms in float32 whatever the weights are, so layouts differ in the last bits. A float64
        # run is for exact comparisons and uses one layout only. Checkpointed layers keep no keys and values to share.
        shares = not module.is_checkpointed and reads_in_pieces(self.model) and self.dtype != torch.float64
        self.layout: Layout = "packed" if module.packed else "shared" if shares else "padded"
        if shares and module.joins:
            self.layout = "joined"

    @property
    def model(self) -> nn.Module:
        """The transformers model, or peft's wrapper of it."""
        return self.module.model

    @property
    def device(self) -> torch.device:
        return self.module.device

    @property
    def dtype(self) -> torch.dtype:
        return self.module.dtype

    @property
    @abstractmethod
    def parameters(self) -> dict[str, nn.Parameter]:
        """Trained parameters by name."""

    def shard(self, saved: SavedWeights | None, *, masters: bool) -> None:
        """Keep only this rank's share of the parameters, or of their `masters`; see `winnow.learner.sharding.shard`."""
        shard(self.module, saved, masters=masters)
        self.sharded = True

    def micro_batches(self, sequences: Sequence[TrainingSequence]) -> Iterator[MicroBatch]:
        """This rank's share of the sequences in micro-batches that fit in memory, made one at a time.

        They are on the model's device, with floats in the model's per-token dtype.
        """
        return micro_batches(
            sequences,
            tokens=self.tokens_per_micro_batch,
            layout=self.layout,
            device=self.device,
            dtype=self.dtype,
            even=self.sharded,
        )

    def hidden_states(self, backbone: nn.Module, mb: MicroBatch) -> Tensor:
        """[T, H] hidden states that predict each completion token."""
        return hidden_states(backbone, mb.sequences, pad_token=self.pad_token, layout=mb.layout or self.layout)

    def values(self, mb: MicroBatch) -> Tensor:
        """[T] values of the value head, before each completion token is sampled."""
        values: Tensor = self.module(lambda backbone, head: self.module.values(self.hidden_states(backbone, mb)))
        return values


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
    """[L] of those sequences of a batch that this rank passes, in the precision that `forward` returns.

    They are copied to the host once, because a copy waits for the device.
    """
    passed, results = list[TrainingSequence](), list[Tensor]()
    for mb in model.micro_batches(sequences):
        numbers = forward(mb)
        if mb.trained_tokens:  # else it only makes up the number of passes of other ranks
            passed += mb.sequences
            results.append(numbers)
    if not passed:
        return {}
    pieces = torch.split(torch.cat(results).cpu(), [len(sequence.rollout.tokens) for sequence in passed])
    return {sequence.key: piece.numpy() for sequence, piece in zip(passed, pieces, strict=True)}
