"""The reference policy of a KL term: the policy as it was when training (or a window) started."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from winnow.learner.policy_module import PolicyModule
from winnow.learner.sharding import gather_whole, is_sharded, shard, shard_like
from winnow.models.adapter import (
    adapter_off,
    adapter_on,
    frozen_adapter,
    has_adapter,
    set_frozen_adapter,
    trained_parameters,
)

FROZEN = "reference"  # the second adapter's name


class Reference(Protocol):
    """A frozen policy. `reset` makes it a copy of the present policy; `state` is what a resume needs to restore it."""

    def active(self) -> AbstractContextManager[PolicyModule]:
        """A context whose value is a module that computes as the reference."""

    def shard(self) -> None:
        """Keep only this rank's share of the reference, where the policy does so too."""

    def reset(self) -> None:
        """Copy the present policy."""

    def state(self) -> dict[str, Tensor]:
        """Tensors by name; empty while the reference is the policy that the run started from."""

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""


class FrozenCopy:
    """The reference of a policy whose parameters are all trained: a second model."""

    def __init__(self, policy: PolicyModule, start: nn.Module | None = None) -> None:
        """`start` is the policy that the run started with, where `policy` is no longer that (a resumed run)."""
        self._policy = policy.model
        self._module = PolicyModule(copy.deepcopy(policy.model) if start is None else start, packed=policy.packed)
        self._module.requires_grad_(False)
        self._moved = False

    @contextmanager
    def active(self) -> Iterator[PolicyModule]:
        yield self._module

    def shard(self) -> None:
        shard(self._module)

    def reset(self) -> None:
        self._copy(dict(self._policy.named_parameters()))

    def state(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self._module.model.named_parameters()} if self._moved else {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        if state:
            self._copy(state)

    @torch.no_grad()
    def _copy(self, source: Mapping[str, Tensor]) -> None:
        for name, parameter in self._module.model.named_parameters():
            value = source[name]
            parameter.copy_(value if is_sharded(value) else shard_like(value, parameter))
        self._moved = True


class FrozenAdapter:
    """The reference of a policy that trains an adapter: the policy's base without the adapter. After a reset it is the
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
