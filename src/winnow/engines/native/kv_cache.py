"""The key and value cache of decoding: prompt blocks, which rollouts share, and every rollout's own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Cache

from winnow.engines.native.cache_size import CacheSize, KVCacheSpec
from winnow.models.precision import distinct_places
from winnow.records import IntArray


class KVCache(Cache):  # type: ignore[misc]  # transformers is untyped here
    """A transformers cache in memory that is allocated once: blocks x P prompt tokens, and rows x C sampled tokens.

    A block holds the keys and values of one prompt, which several rollouts read. The rollouts' own tokens lie in a ring
    buffer: at every decoding step all rows write the same column, so a rollout that began later has its tokens in
    later columns. The mask hides what a row may not see: padding, and columns of the rollout that had the row before.
    """

    def __init__(self, spec: KVCacheSpec, capacity: CacheSize) -> None:
        super().__init__(layers=[])
        self.spec = spec
        self.attended = set[int]()  # layers that have called `attend`
        self._prompt_keys, self._prompt_values = spec.tables(capacity.blocks, capacity.prompt_columns)
        self._own_keys, self._own_values = spec.tables(capacity.rows, capacity.columns)
        self._row_of_entry = self._index(capacity.blocks * capacity.rows_per_block)  # block, head, place -> row, head
        self._entry_of_row = self._index(capacity.rows)  # row, head -> block, head, place
        self._column, self._column_on_device = 0, torch.zeros(1, dtype=torch.int64, device=spec.device)
        self.used = capacity  # what the next forward pass reads

    @property
    def bytes(self) -> int:
        """Memory of all keys and values."""
        tables = (self._prompt_keys, self._prompt_values, self._own_keys, self._own_values)
        return sum(table.nbytes for table in tables)

    def store(self, prefilled: Cache, owner: Sequence[int], blocks: Sequence[int]) -> None:
        """Keep keys and values of left-padded prompts: those of the `owner`-th prompt for each block in `blocks`."""
        end, of, into = self.used.prompt_columns, list(owner), list(blocks)
        with distinct_places():
            for layer, source in enumerate(prefilled.layers):
                begin = end - source.keys.shape[2]
                self._prompt_keys[layer, into, :, :, begin:end] = source.keys[of].mT
                self._prompt_values[layer, into, :, begin:end] = source.values[of]

    def set_block_table(self, blocks: IntArray, *, tight: bool = True) -> None:
        """Set which block each running row [R] reads, after rollouts have started or ended.

        `tight` reads no more places of a block than the fullest block has; without it the shape stays as it is.
        """
        row, order, counts = np.arange(len(blocks)), np.argsort(blocks, kind="stable"), np.bincount(blocks)
        place = np.empty_like(blocks)  # of a row among those of its block
        place[order] = row - np.repeat(np.cumsum(counts) - counts, counts)
        if tight:
            self.used = replace(self.used, rows_per_block=int(counts.max(initial=0)))
        heads = np.arange(self.spec.heads)
        rows = row[:, None] * len(heads) + heads
        entries = (blocks[:, None] * len(heads) + heads) * self.used.rows_per_block + place[:, None]
        row_of_entry = np.zeros(self.used.blocks * len(heads) * self.used.rows_per_block, dtype=np.int64)
        row_of_entry[entries] = rows  # an empty place repeats row 0, and its product is not used
        self._row_of_entry[: len(row_of_entry)] = torch.from_numpy(row_of_entry)
        self._entry_of_row.zero_()[: entries.size] = torch.from_numpy(entries.ravel())

    def begin_step(self, column: int, *, rows: int, columns: int) -> None:
        """The next forward pass writes `column` of `rows` rows, and reads `columns` columns."""
        self._column = column
        self._column_on_device.fill_(column)
        self.used = replace(self.used, rows=rows, columns=columns)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one column of a layer [R, heads, 1, D]. What is returned is not used: `attend` reads the table."""
        keys, values = self._own_keys[layer_idx, : self.used.rows], self._own_values[layer_idx, : self.used.rows]
        if keys.is_cuda:  # a recorded step finds the column in a tensor; a plain one writes three times as fast
            with distinct_places():
                keys.index_copy_(3, self._column_on_device, key_states.mT)
                values.index_copy_(2, self._column_on_device, value_states)
        else:
            keys[..., self._column] = key_states[:, :, 0]
            values[:, :, self._column] = value_states[:, :, 0]
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Models read it where they are given no positions; here they always are."""
        return 0

    def move(self, source: Tensor, target: Tensor) -> None:
        """Overwrite rows `target` by rows `source`."""
        columns = self.used.columns
        with distinct_places():
            self._own_keys[:, target, ..., :columns] = self._own_keys[:, source, ..., :columns]
            self._own_values[:, target, :, :columns] = self._own_values[:, source, :, :columns]

    def attend(self, layer: int, queries: Tensor, mask: Tensor) -> Tensor:
        """Attention of queries [R, Q, D], already scaled, over each row's prompt and own tokens; `mask` [R, P + C] is
        added to the scores.

        The queries of the rows of a block are one matrix, so that a prompt's keys and values are read once for all.
        """
        used = self.used
        self.attended.add(layer)
        prompt, dtype = used.prompt_columns, queries.dtype
        grouped = queries.view(used.rows, self.spec.heads, -1, self.spec.width)  # [R, heads, queries per head, D]
        scores = mask.new_empty(*grouped.shape[:3], mask.shape[1])  # in float32 at least, as the mask is
        prompt_keys, own_keys = self._prompt_keys[layer, : used.blocks], self._own_keys[layer, : used.rows]
        scores[..., :prompt] = self._by_block(grouped, prompt_keys[..., :prompt])
        scores[..., prompt:] = grouped @ own_keys[..., : used.columns]
        shares = scores.add_(mask[:, None, None]).softmax(dim=-1)
        on_prompt, on_own = shares[..., :prompt].to(dtype), shares[..., prompt:].to(dtype)
        output = self._by_block(on_prompt, self._prompt_values[layer, : used.blocks, :, :prompt])
        return output.add_(on_own @ self._own_values[layer, : used.rows, :, : used.columns]).view(queries.shape)

    def _by_block(self, of_rows: Tensor, of_blocks: Tensor) -> Tensor:
        """Per row, its [heads, q, X] times its block's [heads, X, Y]."""
        blocks, heads, places = self.used.blocks, self.spec.heads, self.used.rows_per_block
        rows, _, queries, _ = of_rows.shape
        entries = of_rows.flatten(0, 1).index_select(0, self._row_of_entry[: blocks * heads * places])
        product: Tensor = entries.view(blocks, heads, places * queries, -1) @ of_blocks
        per_row = product.view(len(entries), -1).index_select(0, self._entry_of_row[: rows * heads])
        return per_row.view(rows, heads, queries, -1)

    def _index(self, entries: int) -> Tensor:
        return torch.zeros(entries * self.spec.heads, dtype=torch.int64, device=self.spec.device)
