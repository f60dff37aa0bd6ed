"""How large the key and value cache is: what a token takes, and what a request does. The memory plan reads it too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch

if TYPE_CHECKING:
    from winnow.models.meta import MetaModel

BLOCK = 64  # tokens of a block of keys and values
PIECE = 4096  # tokens that one forward pass over prompts reads


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """What one token takes in every layer: keys and values of `heads` heads of `width` numbers."""

    layers: int
    heads: int  # of keys and values; several query heads may share one
    width: int  # of a head
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, model: MetaModel, dtype: torch.dtype | None = None) -> Self:
        """Of a model, in its weights' precision or in `dtype`."""
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
    """Tokens of a block where no text is longer than `longest`: one block then holds it, and no more. Recorded steps
    want blocks of one size (`fixed`).
    """
    return BLOCK if fixed else max(1, min(BLOCK, longest))


def in_blocks(tokens: int, width: int) -> int:
    """Tokens that the blocks of a text have room for: `in_blocks(65, 64) == 128`."""
    return -(-tokens // width) * width
