"""Attention over prompts shared by many rollouts, for any model that attends through transformers' interface."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor, nn

from winnow.engines.native.kv_cache import KVCache
from winnow.models.backbone import register

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "winnow_shared_prompt"


def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, shared: KVCache, scaling: float) -> Tensor:
    """Attention of one new token per row [R, heads, 1, D] over the cache `shared`, which masks each row's tokens.

    Without a cache, in a forward pass over prompts, attention is that of `attention.register`.
    """
    assert isinstance(module.layer_idx, int)
    return shared.attend(module.layer_idx, query[:, :, 0] * scaling)[:, None]


register(NAME, "shared", attend)


@contextlib.contextmanager
def attention(model: PreTrainedModel) -> Iterator[None]:
    """Inside this context the layers of the model attend through `attend`."""
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
