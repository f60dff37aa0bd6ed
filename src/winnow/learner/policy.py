"""The policy: the trained model as the distribution that rollouts are sampled from, and the reference of a KL term.

The reference is the policy as it was when training (or a window) started.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from winnow.learner.gradient_norms import gradient_norms
from winnow.learner.head import default_chunk_tokens, token_logprobs
from winnow.learner.model_input import AnySequence, targets
from winnow.learner.policy_module import VALUE_HEAD, PolicyModule
from winnow.learner.sequence_model import SequenceModel
from winnow.learner.sharding import GatheredWeights, gather_whole, is_sharded, shard, shard_like
from winnow.memory.footprint import Checkpointing
from winnow.models.adapter import (
    adapter_off,
    adapter_on,
    frozen_adapter,
    has_adapter,
    set_frozen_adapter,
    trained_parameters,
)
from winnow.models.device import to_device
from winnow.models.saved_weights import SavedWeights
from winnow.records import FloatArray, Matrix, MicroBatch, PolicyOutput

FROZEN = "reference"  # the second adapter's name


class Policy(SequenceModel):
    """A transformers model, with or without an adapter, that computes log-probs and gradient norms of sequences. With a
    value head on its backbone it also computes values.

    Logits are divided by `temperature`, which is part of the distribution. They exist for `chunk_tokens` tokens at a
    time, by default `default_chunk_tokens(model)`. A value head is "trained" with the policy's parameters, or
    "lent" to a value model that has its own adapter (value_model.py).
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        temperature: float,
        pad_token: int,
        tokens_per_micro_batch: int,
        chunk_tokens: int | None = None,
        gradient_checkpointing: Checkpointing = "none",
        packed: bool = False,
        value_head: Literal["trained", "lent"] | None = None,
    ) -> None:
        super().__init__(
            PolicyModule(
                model, gradient_checkpointing=gradient_checkpointing, packed=packed, value_head=value_head is not None
            ),
            pad_token=pad_token,
            tokens_per_micro_batch=tokens_per_micro_batch,
        )
        self._temperature = temperature
        self._chunk_tokens = default_chunk_tokens(self.model) if chunk_tokens is None else chunk_tokens
        self._trains_head = value_head == "trained"
        self._computes_in: torch.dtype | None = None  # set where a rank's shares have higher precision

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Trained parameters by name: `weights`, and the value head where it is trained with the policy."""
        return {**trained_parameters(self.model), **self.value_head}

    @property
    def value_head(self) -> dict[str, nn.Parameter]:
        """Parameters of a value head that is trained with the policy; empty where there is no such head."""
        return value_head(self.module) if self._trains_head else {}

    def shard(self, saved: SavedWeights | None, *, masters: bool) -> None:
        self._computes_in = next(iter(trained_parameters(self.model).values())).dtype
        super().shard(saved, masters=masters)

    def weights(self) -> Mapping[str, Tensor]:
        """Weights that an engine copies after an update: the trained parameters by name, not copied yet."""
        named = {name: p.detach() for name, p in trained_parameters(self.model).items()}
        return GatheredWeights(named, self._computes_in) if self.sharded else named

    def forward(
        self, mb: MicroBatch, needs: Collection[str] = (), *, module: PolicyModule | None = None
    ) -> PolicyOutput:
        """Log-probs [T] of the completion tokens given the tokens before them; entropy [T] and values [T] if in
        `needs`.

        `module` computes in place of the policy's module, for the log-probs of a reference.
        """
        module = module or self.module
        completions = to_device(targets(mb.sequences), self.device)

        def compute(backbone: nn.Module, head: nn.Module) -> tuple[Tensor, Tensor | None, Tensor | None]:
            hidden = self.hidden_states(backbone, mb)
            outputs = token_logprobs(
                hidden,
                head,
                completions,
                temperature=self._temperature,
                chunk=self._chunk_tokens,
                with_entropy="entropy" in needs,
            )
            return *outputs, module.values(hidden) if "values" in needs else None

        logprobs, entropy, values = module(compute)
        return PolicyOutput(logprobs=logprobs, entropy=entropy, values=values)

    def gradient_norms(self, sequences: Sequence[AnySequence], *, of: Matrix) -> FloatArray:
        """[n] norms || d log P(rollout | prompt) / d matrix ||_2 under the present weights; see gradient_norms.py."""
        return gradient_norms(self, sequences, of=of, temperature=self._temperature, chunk=self._chunk_tokens)


def value_head(module: PolicyModule) -> dict[str, nn.Parameter]:
    """Parameters of a module's value head, by name."""
    assert module.value_head is not None, "the module was made with a value head"
    return {f"{VALUE_HEAD}{name}": p for name, p in module.value_head.named_parameters()}


class FrozenCopy:
    """The reference of a policy whose parameters are all trained: a second model.

    It starts as the policy that the run starts with.
    """

    def __init__(self, policy: PolicyModule, start: nn.Module | None = None, saved: SavedWeights | None = None) -> None:
        """`start` is the policy that the run started with, where `policy` is no longer that (a resumed run), or where
        it is on the meta device: `shard` then reads the reference from `saved`.
        """
        self._policy, self._saved = policy.model, saved
        self._module = PolicyModule(copy.deepcopy(policy.model) if start is None else start, packed=policy.packed)
        self._module.requires_grad_(False)
        self._moved = False

    @contextmanager
    def active(self) -> Iterator[PolicyModule]:
        """A context whose value is a module that computes as the reference."""
        yield self._module

    def shard(self) -> None:
        """Keep only this rank's share of the reference, where the policy does so too."""
        shard(self._module, self._saved)
        self._saved = None

    def reset(self) -> None:
        """Copy the present policy."""
        self._copy(dict(self._policy.named_parameters()))

    def state(self) -> dict[str, Tensor]:
        """Tensors by name; empty while the reference is the policy that the run started from."""
        return {name: p.detach() for name, p in self._module.model.named_parameters()} if self._moved else {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        if state:
            self._copy(state)

    @torch.no_grad()
    def _copy(self, source: Mapping[str, Tensor]) -> None:
        for name, parameter in self._module.model.named_parameters():
            value = source[name]
            parameter.copy_(value if is_sharded(value) else shard_like(value, parameter))
        self._moved = True


class FrozenAdapter:
    """`FrozenCopy`, for a policy that trains an adapter: the policy's base without the adapter. After a reset it is the
    base with a frozen copy of the adapter.
    """

    def __init__(self, policy: PolicyModule) -> None:
        self._policy = policy

    @contextmanager
    def active(self) -> Iterator[PolicyModule]:
        model = self._policy.model
        with adapter_on(model, FROZEN) if has_adapter(model, FROZEN) else adapter_off(model):
            yield self._policy

    def shard(self) -> None:
        """Do nothing: the base is divided with the policy."""

    def reset(self) -> None:
        trained = {name: gather_whole(p) for name, p in trained_parameters(self._policy.model).items()}
        set_frozen_adapter(self._policy.model, FROZEN, trained)  # whole on every rank, as it is small

    def state(self) -> dict[str, Tensor]:
        return frozen_adapter(self._policy.model, FROZEN)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        if state:
            set_frozen_adapter(self._policy.model, FROZEN, state)


Reference = FrozenCopy | FrozenAdapter
