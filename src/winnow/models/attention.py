"""Register a custom attention function for any model that attends through transformers' interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

MORE = ("sliding_window", "softcap", "s_aux")  # options of models with more than full attention


def register(name: str, argument: str, attend: Callable[..., Tensor]) -> None:
    """Register the attention `name` with transformers.

    Where a forward pass gets `argument`, the result is `attend(module, query, key, value, argument, scaling)` of [R,
    heads, L, D], which returns [R, L, heads, D]. Otherwise it is scaled dot-product attention. With `argument`, a model
    that needs more than full attention raises TypeError.
    """

    def forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        given = options.pop(argument, None)
        if given is None:
            output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
            return output, None
        if unknown := [name for name in MORE if options.get(name) is not None]:
            raise TypeError(f"its attention needs {unknown[0]}")
        return attend(module, query, key, value, given, scaling), None

    AttentionInterface.register(name, forward)
    AttentionMaskInterface.register(name, sdpa_mask)
