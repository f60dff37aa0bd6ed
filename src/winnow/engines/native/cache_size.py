"""How large the key and value cache is: what a token takes, and what a request does. The memory plan reads it too."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from winnow.engines.native.cuda_graphs import padded

if TYPE_CHECKING:
    from winnow.models.meta import MetaModel

COLUMNS = 64  # a recorded step reads prompts and ring buffer in pieces of this many columns


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

    def tables(self, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        """Keys [layers, rows, heads, width, columns] and values [layers, rows, heads, columns, width]: either as its
        product in attention reads it, in one piece. Zeros, as attention multiplies what nobody has written by a weight
        of 0, and 0 x NaN is NaN.
        """
        shape = (self.layers, rows, self.heads)
        keys = torch.zeros((*shape, self.width, columns), dtype=self.dtype, device=self.device)
        return keys, torch.zeros((*shape, columns, self.width), dtype=self.dtype, device=self.device)

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.heads * self.width * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class CacheSize:
    """How large a cache is, how much of it a request takes, or how much of it the next forward pass reads."""

    blocks: int  # prompt blocks
    rows_per_block: int  # rollouts that share a block, at most
    prompt_columns: int  # P, tokens of a prompt
    rows: int  # R, rollouts
    columns: int  # C, tokens of a rollout

    def covers(self, other: CacheSize) -> bool:
        return all(getattr(self, f.name) >= getattr(other, f.name) for f in fields(self))

    def joined(self, other: CacheSize) -> CacheSize:
        """The smallest that covers both."""
        return CacheSize(**{f.name: max(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)})

    def tokens(self) -> int:
        """That fit in, all rows together."""
        return self.blocks * self.prompt_columns + self.rows * self.columns


def rounded(size: CacheSize) -> CacheSize:
    """The size that recorded steps take for a request: few sizes, so that few are recorded."""
    return CacheSize(
        blocks=padded(size.blocks, 2 * size.blocks),
        rows_per_block=padded(size.rows_per_block, 2 * size.rows_per_block),
        prompt_columns=round_columns(size.prompt_columns),
        rows=size.rows,
        columns=round_columns(size.columns),
    )


def round_columns(columns: int) -> int:
    """To whole pieces: `round_columns(65) == 128`."""
    return -(-columns // COLUMNS) * COLUMNS
