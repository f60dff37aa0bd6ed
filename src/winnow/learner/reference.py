"""The reference policy that a KL term measures the distance to: the policy as it was when training (or a window)
began.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from winnow.learner.policy_module import PolicyModule
from winnow.learner.sharding import is_sharded, shard, share_of, whole
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
    """A frozen policy. `reset` makes it the present one; `state` is what a resume needs to find it again."""

    def active(self) -> AbstractContextManager[PolicyModule]:
        """A context in which the module that it yields computes as the reference."""

    def shard(self) -> None:
        """Leave every rank its share, as the policy has done."""

    def reset(self) -> None:
        """Become the policy as it is now."""

    def state(self) -> dict[str, Tensor]:
        """By name; empty as long as the reference is the policy that the run started from."""

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Become what `state` described."""


class FrozenCopy:
    """A second model beside a policy of which every parameter is trained."""

    def __init__(self, policy: PolicyModule, start: nn.Module | None = None) -> None:
        """`start` is the policy the run began with, where that is no longer `policy` (a resumed run)."""
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
            given = source[name]
            parameter.copy_(given if is_sharded(given) else share_of(given, parameter))
        self._moved = True


class FrozenAdapter:
    """For a policy that trains an adapter: its base with the adapter switched off, or, once reset, with a frozen
    second one.
    """

    def __init__(self, policy: PolicyModule) -> None:
        self._policy = policy

    @contextmanager
    def active(self) -> Iterator[PolicyModule]:
        model = self._policy.model
        with adapter_on(model, FROZEN) if has_adapter(model, FROZEN) else adapter_off(model):
            yield self._policy

    def shard(self) -> None:
        """It is part of the policy."""

    def reset(self) -> None:
        trained = {name: whole(p) for name, p in trained_parameters(self._policy.model).items()}
        set_frozen_adapter(self._policy.model, FROZEN, trained)  # every rank has all of it: it is small

    def state(self) -> dict[str, Tensor]:
        return frozen_adapter(self._policy.model, FROZEN)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        if state:
            set_frozen_adapter(self._policy.model, FROZEN, state)
