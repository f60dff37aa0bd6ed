"""The reference policy that a KL term measures the distance to: the policy as it was when training (or a window)
began.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from winnow.models.backbone import Halves, decoder_and_head

ADAPTER = "reference"


class Reference(Protocol):
    """A frozen policy. `reset` makes it the present one; `state` is what a resume needs to find it again."""

    def active(self) -> AbstractContextManager[Halves]:
        """A context in which the decoder and head it yields compute as the reference."""

    def reset(self) -> None:
        """Become the policy as it is now."""

    def state(self) -> dict[str, Tensor]:
        """By name; empty as long as the reference is the policy that the run started from."""

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Become what `state` described."""


class FrozenCopy:
    """A second model beside a policy of which every parameter is trained."""

    def __init__(self, policy: nn.Module, start: nn.Module | None = None) -> None:
        """`start` is the policy the run began with, where that is no longer `policy` (a resumed run)."""
        self._policy = policy
        self._model = copy.deepcopy(policy) if start is None else start
        self._model.requires_grad_(False)
        self._halves = decoder_and_head(self._model)
        self._moved = False

    @contextmanager
    def active(self) -> Iterator[Halves]:
        yield self._halves

    @torch.no_grad()
    def reset(self) -> None:
        self._copy(dict(self._policy.named_parameters()))

    def state(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self._model.named_parameters()} if self._moved else {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        if state:
            self._copy(state)

    @torch.no_grad()
    def _copy(self, source: Mapping[str, Tensor]) -> None:
        for name, parameter in self._model.named_parameters():
            parameter.copy_(source[name])
        self._moved = True


class StartingAdapter:
    """For a policy that trains an adapter: its base with the adapter switched off, or, once reset, with a frozen
    second one.
    """

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self._halves = decoder_and_head(policy)

    @contextmanager
    def active(self) -> Iterator[Halves]:
        if not self._second:
            with self._policy.disable_adapter():
                yield self._halves
            return
        self._switch(ADAPTER)
        try:
            yield self._halves
        finally:
            self._switch("default")

    def reset(self) -> None:
        self._become({name: p for name, p in self._policy.named_parameters() if ".default." in name})

    def state(self) -> dict[str, Tensor]:
        own = {name: p.detach() for name, p in self._policy.named_parameters() if f".{ADAPTER}." in name}
        return {name.replace(f".{ADAPTER}.", ".default."): p for name, p in own.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        if state:
            self._become(state)

    @property
    def _second(self) -> bool:
        return ADAPTER in self._policy.peft_config

    @torch.no_grad()
    def _become(self, adapter: Mapping[str, Tensor]) -> None:
        if not self._second:
            self._policy.add_adapter(ADAPTER, self._policy.peft_config["default"])
            self._switch("default")
        parameters = dict(self._policy.named_parameters())
        for name, value in adapter.items():
            parameters[name.replace(".default.", f".{ADAPTER}.")].copy_(value)

    def _switch(self, adapter: str) -> None:
        """peft makes the active adapter trainable; only the policy's own ever is."""
        self._policy.set_adapter(adapter)
        for name, parameter in self._policy.named_parameters():
            if ".lora_" in name:
                parameter.requires_grad_(".default." in name)
