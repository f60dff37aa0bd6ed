"""Attention over a prompt that many rollouts share, for any model that attends through transformers' interface."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from winnow.engines.native.kv_cache import KVCache

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "winnow_shared_prompt"


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    shared: KVCache | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention of one new token per row [R, heads, 1, D] over the cache `shared`, which knows what each may see.

    Without `shared` (a prompt is being read) it is scaled dot-product attention.
    """
    if shared is None:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
        return output, None
    if unknown := [name for name in ("sliding_window", "softcap", "s_aux") if options.get(name) is not None]:
        raise TypeError(f"its attention wants {unknown[0]}")
    assert isinstance(module.layer_idx, int)
    return shared.attend(module.layer_idx, query[:, :, 0] * scaling)[:, None], None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextlib.contextmanager
def attention(model: PreTrainedModel) -> Iterator[None]:
    """Inside this context the model's layers attend through `attend`."""
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
