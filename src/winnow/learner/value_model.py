"""A separate value model: it predicts the return before each token is sampled.

Its backbone is another model, or the policy's frozen base with a second adapter. Its head is that of a `PolicyModule`.
A head on the policy's trained backbone is part of the policy (policy.py).
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
    """A module with a value head. With `on_policy`, the module is the policy's, and only the head and a second adapter
    on it belong to the value model.
    """

    def __init__(
        self, module: PolicyModule, *, pad_token: int, tokens_per_micro_batch: int, on_policy: bool = False
    ) -> None:
        super().__init__(module, pad_token=pad_token, tokens_per_micro_batch=tokens_per_micro_batch)
        self.on_policy = on_policy

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """See `SequenceModel`."""
        backbone = value_adapter(self.model) if self.on_policy else trained_parameters(self.model)
        return {**backbone, **value_head(self.module)}

    def shard(self, masters: Mapping[str, Tensor]) -> None:
        """See `SequenceModel`. With `on_policy`, the module has been divided with the policy."""
        if self.on_policy:
            self.sharded = True
        else:
            super().shard(masters)

    def forward(self, mb: MicroBatch) -> Tensor:
        """[T] values before each completion token is sampled."""
        with self.active():
            values: Tensor = self.module(lambda backbone, head: self.module.values(self.hidden_states(backbone, mb)))
        return values

    @contextmanager
    def active(self) -> Iterator[None]:
        """A context in which the adapter on the policy's base is active; no change for another model. Backward needs it
        too, because it may recompute layers.
        """
        if not self.on_policy:
            yield
            return
        with adapter_on(self.model, VALUES):
            yield
