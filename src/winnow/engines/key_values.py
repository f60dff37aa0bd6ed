"""Keys and values of the living rollouts, in memory that is set aside once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache


class KeyValues(Cache):  # type: ignore[misc]  # transformers is untyped here
    """A transformers cache that never grows by concatenation: rows [0, living) and columns [0, filled) are valid.

    All rows write the same column at once, so prompts must end in the same one (left padding).
    """

    def __init__(self, prompts: DynamicCache, owner: Tensor, columns: int) -> None:
        """Copy the keys and values of prompts [G] to the rollouts they belong to: `owner` [R] indexes prompts."""
        super().__init__(layers=[])
        self.living = len(owner)
        self.filled = int(prompts.get_seq_length())
        self._keys = _spread([layer.keys for layer in prompts.layers], owner, columns)
        self._values = _spread([layer.values for layer in prompts.layers], owner, columns)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one column of a layer [R, H, 1, D]; answer everything up to it, as views."""
        keys, values = self._keys[layer_idx, : self.living], self._values[layer_idx, : self.living]
        keys[:, :, self.filled] = key_states[:, :, 0]
        values[:, :, self.filled] = value_states[:, :, 0]
        return keys[:, :, : self.filled + 1], values[:, :, : self.filled + 1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns filled before the running forward pass."""
        return self.filled

    def retain(self, living: int, source: Tensor, target: Tensor) -> None:
        """Overwrite rows `target` by rows `source`, then forget all rows from `living` on."""
        for table in (self._keys, self._values):
            table[:, target, :, : self.filled] = table[:, source, :, : self.filled]
        self.living = living


def _spread(layers: list[Tensor], owner: Tensor, columns: int) -> Tensor:
    """[G, H, P, D] of each layer -> [layers, R, H, columns, D], filled up to column P."""
    _, heads, filled, width = layers[0].shape
    out = layers[0].new_empty(len(layers), len(owner), heads, columns, width)
    for layer, source in enumerate(layers):
        torch.index_select(source, 0, owner, out=out[layer, :, :, :filled])
    return out
