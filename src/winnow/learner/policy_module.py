"""The one module through which every pass of a policy goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from winnow.errors import ConfigError
from winnow.learner.packed import attend_packed
from winnow.memory.footprint import Checkpointing
from winnow.models.adapter import plain_model
from winnow.models.backbone import BackboneAndHead, backbone_and_head

T = TypeVar("T")

NARROW = 8  # a product over fewer than an eighth of the numbers it gives, an adapter's B, is cheaper computed than kept
_ATEN = torch.ops.aten
PRODUCTS = (_ATEN.mm.default, _ATEN.addmm.default)  # a layer of weights; scores of attention, bmm, are never kept
ATTENTION = (
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
    _ATEN._scaled_dot_product_flash_attention.default,
    _ATEN._scaled_dot_product_efficient_attention.default,
    _ATEN._scaled_dot_product_cudnn_attention.default,
)


class PolicyModule(nn.Module):
    """A causal language model, called with what is to be computed from its backbone and its head.

    Neither part is ever called from elsewhere: what is hooked to this module (to FSDP2, the root, which gathers the
    parameters of both parts and the matrix that they may share) happens in every pass. For such hooks `compute` returns
    tensors, or tuples of them, and whoever calls it takes gradients from those alone.

    It stays in eval mode for good: with dropout the ratio of new to old probabilities would not start at 1. The parts
    are registered once, as parts of `model`, so parameters keep the names that they have there.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        gradient_checkpointing: Checkpointing = "none",
        packed: bool = False,
        value_head: bool = False,
    ) -> None:
        """Raises ConfigError for a model that is more than its parts, cannot do gradient checkpointing, or, if it is to
        read packed sequences, cannot attend over them.

        With `value_head` it has one for a value per token, which starts at 0 everywhere.
        """
        super().__init__()
        self.model = model
        self.eval()
        self.parts = backbone_and_head(model)  # in a tuple, which registers nothing
        self.packed = packed
        if packed:
            attend_packed(model)
        self._checkpointed = _checkpoint_layers(model, gradient_checkpointing)
        self.is_checkpointed = gradient_checkpointing != "none"
        self.value_head = self._made_value_head() if value_head else None
        # An embedding with a padding index gives that token no gradient, wherever it stands: a mask by value.
        plain_model(model).get_input_embeddings().padding_idx = None

    def forward(self, compute: Callable[[nn.Module, nn.Module], T]) -> T:
        """`compute(backbone, head)`."""
        with self._checkpointing():
            return compute(*self.parts)

    def drop_head(self) -> None:
        """Free the output layer of a model that says values and no log-probs; one that is tied stays as embedding."""
        plain_model(self.model).set_output_embeddings(nn.Identity())
        self.parts = BackboneAndHead(self.parts.backbone, nn.Identity())

    def values(self, hidden: Tensor) -> Tensor:
        """[T] the values of hidden states [T, H]; to be called from within `forward`."""
        assert self.value_head is not None, "it was made with a value head"
        values: Tensor = self.value_head(hidden.to(self.dtype))
        return values.squeeze(-1).clone()  # hooks of FSDP2 want no view

    def _made_value_head(self) -> nn.Linear:
        """At zero, and in float32 at least: returns are learned more finely than bfloat16 tells numbers apart."""
        width = plain_model(self.model).config.get_text_config().hidden_size
        made = nn.Linear(width, 1, device=self.device, dtype=self.dtype)
        nn.init.zeros_(made.weight)
        nn.init.zeros_(made.bias)
        return made

    @property
    def dtype(self) -> torch.dtype:
        """Of what it computes per token: float64 for a float64 model, else float32."""
        return torch.promote_types(next(self.model.parameters()).dtype, torch.float32)

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


def _checkpoint_layers(model: nn.Module, how: Checkpointing) -> list[nn.Module]:
    """Switch gradient checkpointing on, and return the layers that have it. Raises ConfigError where it cannot be."""
    if how == "none":
        return []
    causal = plain_model(model)
    if not causal.supports_gradient_checkpointing:
        family = type(causal).__name__
        raise ConfigError(
            f"model.gradient_checkpointing: {family} does not support it",
            remedy="set it to 'none'",
            key="model.gradient_checkpointing",
            code="config.unsupported",
        )
    # Newer versions of transformers call it activation checkpointing and warn about the older name.
    enable = getattr(causal, "activation_checkpointing_enable", None) or causal.gradient_checkpointing_enable
    contexts = {"context_fn": partial(create_selective_checkpoint_contexts, _keep)} if how == "selective" else {}
    enable({"use_reentrant": False, **contexts})
    layers = [module for module in model.modules() if hasattr(module, "_gradient_checkpointing_func")]
    for layer in layers:
        dropouts = [name for name, p in vars(layer).items() if "drop" in name and isinstance(p, float) and p > 0]
        if dropouts:
            raise ConfigError(
                f"model.gradient_checkpointing: {type(layer).__name__} would apply its {dropouts[0]}",
                remedy="set it to 0 in the model's config.json, or set this key to 'none'",
                key="model.gradient_checkpointing",
                code="config.unsupported",
            )
    return layers


def _keep(context: object, operation: object, *inputs: Any, **options: Any) -> CheckpointPolicy:
    """What selective checkpointing keeps of a layer: matrix products and attention. Norms, rotations, activations and
    sums are computed again (Korthikanti et al. 2022, arXiv 2205.05198, section 5, with the products kept instead).
    """
    kept = operation in ATTENTION or (operation in PRODUCTS and _is_dear(*inputs[-2:]))
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _is_dear(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether [T, K] x [K, N] computes long for what it gives."""
    return NARROW * right.shape[0] >= right.shape[1]
