"""A value model of its own: what return is to be expected before each token is sampled.

Its backbone is another model, or the policy's frozen base under an adapter of the value model's own; its head is a
`PolicyModule`'s. (A head on the policy's own backbone is part of the policy: policy.py.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from winnow.learner.policy import value_head
from winnow.learner.policy_module import PolicyModule
from winnow.learner.sequence_model import SequenceModel
from winnow.models.adapter import VALUES, adapter_on, trained_parameters, value_adapter
from winnow.records import MicroBatch


class ValueModel(SequenceModel):
    """A module with a value head; `on_policy` says that the module is the policy's, on which it has an adapter."""

    def __init__(
        self, module: PolicyModule, *, pad_token: int, tokens_per_micro_batch: int, on_policy: bool = False
    ) -> None:
        super().__init__(module, pad_token=pad_token, tokens_per_micro_batch=tokens_per_micro_batch)
        self.on_policy = on_policy

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """See `SequenceModel`."""
        own = value_adapter(self.model) if self.on_policy else trained_parameters(self.model)
        return {**own, **value_head(self.module)}

    def shard(self, masters: Mapping[str, Tensor]) -> None:
        """See `SequenceModel`; the policy's module has been divided with the policy."""
        if self.on_policy:
            self.sharded = True
        else:
            super().shard(masters)

    def forward(self, mb: MicroBatch) -> Tensor:
        """[T] the value before each completion token is sampled."""
        with self.active():
            found: Tensor = self.module(lambda backbone, head: self.module.values(self.hidden_states(backbone, mb)))
        return found

    @contextmanager
    def active(self) -> Iterator[None]:
        """A context in which its adapter is on: for a backward too, which may compute layers again."""
        if not self.on_policy:
            yield
            return
        with adapter_on(self.model, VALUES):
            yield
