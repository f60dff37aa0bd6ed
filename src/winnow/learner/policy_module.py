"""The one module through which every pass of a policy goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from winnow.errors import ConfigError
from winnow.models.adapter import plain_model
from winnow.models.backbone import backbone_and_head

T = TypeVar("T")


class PolicyModule(nn.Module):
    """A causal language model, called with what is to be computed from its backbone and its head.

    Neither part is ever called from elsewhere: what is hooked to this module (to FSDP2, the root, which gathers the
    parameters of both parts and the matrix that they may share) happens in every pass. For such hooks `compute` returns
    tensors, or tuples of them, and whoever calls it takes gradients from those alone.

    It stays in eval mode for good: with dropout the ratio of new to old probabilities would not start at 1. The parts
    are registered once, as parts of `model`, so parameters keep the names that they have there.
    """

    def __init__(self, model: nn.Module, *, gradient_checkpointing: bool = False) -> None:
        """Raises ConfigError for a model that is more than its parts, or cannot do gradient checkpointing."""
        super().__init__()
        self.model = model
        self.eval()
        self.parts = backbone_and_head(model)  # in a tuple, which registers nothing
        self._checkpointed = _checkpoint_layers(model) if gradient_checkpointing else []
        # An embedding with a padding index gives that token no gradient, wherever it stands: a mask by value.
        plain_model(model).get_input_embeddings().padding_idx = None

    def forward(self, compute: Callable[[nn.Module, nn.Module], T]) -> T:
        """`compute(backbone, head)`."""
        with self._checkpointing():
            return compute(*self.parts)

    @property
    def device(self) -> torch.device:
        """Of its parameters."""
        return next(self.model.parameters()).device

    @contextmanager
    def _checkpointing(self) -> Iterator[None]:
        """Layers are recomputed in backward only where they are in training mode during forward. An engine decodes on
        the same layers, and that mode would switch its cache off: it is set during this forward alone.
        """
        layers = self._checkpointed if torch.is_grad_enabled() else []
        for layer in layers:
            layer.training = True  # the layer alone: what is inside it stays in eval mode
        try:
            yield
        finally:
            for layer in layers:
                layer.training = False


def _checkpoint_layers(model: nn.Module) -> list[nn.Module]:
    """Switch gradient checkpointing on, and return the layers that have it. Raises ConfigError where it cannot be."""
    causal = plain_model(model)
    if not causal.supports_gradient_checkpointing:
        raise ConfigError(f"model.gradient_checkpointing: {type(causal).__name__} does not support it; switch it off")
    # Newer versions of transformers call it activation checkpointing and warn about the older name.
    enable = getattr(causal, "activation_checkpointing_enable", None) or causal.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    layers = [module for module in model.modules() if hasattr(module, "_gradient_checkpointing_func")]
    for layer in layers:
        dropouts = [name for name, p in vars(layer).items() if "drop" in name and isinstance(p, float) and p > 0]
        if dropouts:
            raise ConfigError(
                f"model.gradient_checkpointing: {type(layer).__name__} would apply its {dropouts[0]}; "
                f"set it to 0 in the model's config.json, or switch checkpointing off"
            )
    return layers
