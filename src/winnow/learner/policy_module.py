"""The module that every pass of a policy goes through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from winnow.errors import unsupported
from winnow.learner.packing import attend_packed, can_join
from winnow.memory.footprint import NARROW, Checkpointing
from winnow.models.adapter import plain_model
from winnow.models.attention import attend_short
from winnow.models.backbone import BackboneAndHead, backbone_and_head
from winnow.models.device import is_cpu
from winnow.models.meta import has_numbers

T = TypeVar("T")

VALUE_HEAD = "value_head."  # prefix of the names of its parameters, which are float32 or float64
_ATEN = torch.ops.aten
PRODUCTS = (_ATEN.mm.default, _ATEN.addmm.default)  # linear layers; attention scores (bmm) are never kept
ATTENTION = (
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
    _ATEN._scaled_dot_product_flash_attention.default,
    _ATEN._scaled_dot_product_efficient_attention.default,
    _ATEN._scaled_dot_product_cudnn_attention.default,
)


class PolicyModule(nn.Module):
    """A causal language model that is called with a function of its backbone and its head.

    Both parts are called only from here. So hooks on this module run in every pass; to FSDP2 it is the root, which
    gathers the parameters of both parts and the matrix that they may share. For such hooks `compute` returns tensors or
    tuples of them, and callers differentiate only those.

    It stays in eval mode: with dropout the ratio of new to old probabilities would not start at 1. The parts are
    registered only within `model`, so that their parameters keep the names that they have in it.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        gradient_checkpointing: Checkpointing = "none",
        packed: bool = False,
        value_head: bool = False,
    ) -> None:
        """Raises ConfigError for a model that is more than backbone and head, or that cannot do what is requested:
        gradient checkpointing, or attention over packed sequences.

        With `value_head`, the module gets a head that computes one value per token. All values are 0 at first.
        """
        super().__init__()
        self.model = model
        self.eval()
        self.parts = backbone_and_head(model)  # a tuple, so that torch does not register the parts twice
        self.packed = packed
        if packed:
            attend_packed(model)
        else:
            attend_short(plain_model(model))
        self.joins = not packed and can_join(model)
        self._checkpointed = _checkpoint_layers(model, gradient_checkpointing)
        self.is_checkpointed = gradient_checkpointing != "none"
        self.value_head: nn.Linear | None = None
        if value_head:  # in float32 or float64: bfloat16 is too coarse for returns
            width = plain_model(model).config.get_text_config().hidden_size
            self.value_head = nn.Linear(width, 1, device=self.device, dtype=self.dtype)
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)
        # An embedding with a padding index gives that token no gradient, also where it is not padding.
        embedding = plain_model(model).get_input_embeddings()
        for part in embedding.modules():  # under an adapter, the embedding itself is inside
            part.padding_idx = None
        embedding.sparse = _adds_rows(embedding, self.parts.head)

    def forward(self, compute: Callable[[nn.Module, nn.Module], T]) -> T:
        """`compute(backbone, head)`."""
        with self._checkpointing():
            return compute(*self.parts)

    def check(self) -> None:
        """Raise ConfigError as on making, where the model had no numbers then. It is a pass of all ranks."""

        def check_parts(backbone: nn.Module, head: nn.Module) -> None:
            if not isinstance(head, nn.Identity):  # a value model's, which computes no logits
                backbone_and_head(self.model)
            if self.packed:
                attend_packed(self.model)

        with torch.no_grad():
            self(check_parts)

    def drop_head(self) -> None:
        """Free the output layer of a model that computes values and no log-probs. A tied one stays as the embedding."""
        plain_model(self.model).set_output_embeddings(nn.Identity())
        self.parts = BackboneAndHead(self.parts.backbone, nn.Identity())

    def values(self, hidden: Tensor) -> Tensor:
        """[T] values of hidden states [T, H]. Call it within `forward`."""
        assert self.value_head is not None, "the module was made with a value head"
        values: Tensor = self.value_head(hidden.to(self.dtype))
        return values.squeeze(-1).clone()  # a copy, because FSDP2's hooks need a tensor that is no view

    @property
    def dtype(self) -> torch.dtype:
        """dtype of per-token results: float64 for a float64 model, else float32."""
        return torch.promote_types(next(self.model.parameters()).dtype, torch.float32)

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next(self.model.parameters()).device

    @contextmanager
    def _checkpointing(self) -> Iterator[None]:
        """A context in which checkpointed layers are in training mode.

        transformers recomputes layers in backward only where they were in training mode during forward. That mode
        disables the cache of an engine that decodes on the same layers, so it is set during this forward alone.
        """
        layers = self._checkpointed if torch.is_grad_enabled() else []
        for layer in layers:
            layer.training = True  # not layer.train(): submodules stay in eval mode, without dropout
        try:
            yield
        finally:
            for layer in layers:
                layer.training = False


def _adds_rows(embedding: nn.Module, head: nn.Module) -> bool:
    """Whether the embedding's gradient [V, H] is computed as the rows of the tokens that were read.

    On a CPU autograd adds these rows to the output layer's gradient, if both have one matrix. Otherwise it would first
    add them to [V, H] zeros, which takes longer than both products of a few hundred tokens.
    """
    weight = embedding.weight
    tied = weight is getattr(head, "weight", None)
    return tied and isinstance(weight, Tensor) and is_cpu(weight.device) and has_numbers(weight)


def _checkpoint_layers(model: nn.Module, how: Checkpointing) -> list[nn.Module]:
    """Enable gradient checkpointing, and return the layers that have it. Raises ConfigError if it is impossible."""
    if how == "none":
        return []
    causal = plain_model(model)
    if not causal.supports_gradient_checkpointing:
        family = type(causal).__name__
        raise unsupported(
            f"model.gradient_checkpointing: {family} does not support it",
            remedy="set it to 'none'",
            key="model.gradient_checkpointing",
        )
    # Newer versions of transformers call it activation checkpointing and warn about the older name.
    enable = getattr(causal, "activation_checkpointing_enable", None) or causal.gradient_checkpointing_enable
    contexts = {"context_fn": partial(create_selective_checkpoint_contexts, _choose)} if how == "selective" else {}
    # The reentrant form gives no gradients where its input needs none, as behind frozen embeddings.
    enable({"use_reentrant": False, **contexts})
    causal.disable_input_require_grads()  # of an adapter's embeddings: only the reentrant form needs it
    layers = [module for module in model.modules() if hasattr(module, "_gradient_checkpointing_func")]
    for layer in layers:
        dropouts = [name for name, p in vars(layer).items() if "drop" in name and isinstance(p, float) and p > 0]
        if dropouts:
            raise unsupported(
                f"model.gradient_checkpointing: {type(layer).__name__} would apply its {dropouts[0]}, as it is then in "
                "training mode",
                remedy="set it to 0 in the model's config.json, or set this key to 'none'",
                key="model.gradient_checkpointing",
            )
    return layers


def _choose(context: object, operation: object, *inputs: Any, **options: Any) -> CheckpointPolicy:
    """The selective checkpointing policy: keep matrix products and attention of a layer. Norms, rotations, activations
    and sums are computed again (Korthikanti et al. 2022, arXiv 2205.05198, section 5, with the products kept instead).
    """
    # A product [T, K] x [K, N] that costs much time per number that it returns
    kept = operation in ATTENTION or (operation in PRODUCTS and NARROW * inputs[-1].shape[0] >= inputs[-1].shape[1])
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
