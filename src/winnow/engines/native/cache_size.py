"""The size of the key and value cache, per token and per request; the memory plan uses it too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch

if TYPE_CHECKING:
    from winnow.models.meta import MetaModel

BLOCK = 64  # tokens per block of keys and values
PIECE = 4096  # most tokens that one forward pass over prompts reads


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """The cache of one token: in every layer, keys and values of `heads` heads of `width` numbers."""

    layers: int
    heads: int  # key-value heads; several query heads may share one
    width: int  # numbers per head
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, model: MetaModel, dtype: torch.dtype | None = None) -> Self:
        """The cache of a model, in its weights' precision or in `dtype`."""
        config = model.config.get_text_config()
        heads = config.num_attention_heads
        return cls(
            layers=config.num_hidden_layers,
            heads=getattr(config, "num_key_value_heads", None) or heads,
            width=getattr(config, "head_dim", None) or config.hidden_size // heads,
            dtype=dtype or model.dtype,
            device=model.device,
        )

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.heads * self.width * self.dtype.itemsize


def block_width(longest: int, *, fixed: bool) -> int:
    """Tokens per block where no text is longer than `longest`: that length, but at most BLOCK. Recorded steps need
    blocks of one size (`fixed`).
    """
    return BLOCK if fixed else max(1, min(BLOCK, longest))


def round_to_blocks(tokens: int, width: int) -> int:
    """Tokens rounded up to whole blocks: `round_to_blocks(65, 64) == 128`."""
    return -(-tokens // width) * width
