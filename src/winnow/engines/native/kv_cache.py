"""The key and value cache of decoding: one memory, in blocks that rollouts and prompts hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from winnow.engines.native.block_attention import joined, per_block
from winnow.engines.native.blocks import BlockPool
from winnow.engines.native.cache_size import BLOCK, KVCacheSpec
from winnow.engines.native.shapes import Shape
from winnow.models.precision import distinct_places
from winnow.records import IntArray

SPARE = 2 * BLOCK  # tokens behind the cache: rows that only fill a shape write there


@dataclass(frozen=True, slots=True)
class BlockSection:
    """One end of the cache, in blocks of one width: keys [layers, N, heads, D, W] and values [layers, N, heads, W, D],
    either as its product in attention reads it, and what is added to the scores [N, W]: -inf where nothing is written.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor
    reverse: bool  # block 0 is the last

    def at(self, blocks: IntArray) -> IntArray:
        """Where blocks lie, by their numbers."""
        return self.mask.shape[0] - 1 - blocks if self.reverse else blocks

    def piece(self, first: int, end: int) -> slice:
        """Where blocks `first` to `end` lie."""
        most = self.mask.shape[0]
        return slice(most - end, most - first) if self.reverse else slice(first, end)

    def write(self, layer: int, block: Tensor, column: Tensor, keys: Tensor, values: Tensor) -> None:
        """Keys and values [T, heads, D] of tokens, each at its column [T] of its block [T]."""
        with distinct_places():
            self.keys[layer][block, :, :, column] = keys
            self.values[layer][block, :, column] = values


class KVCache(Cache):  # type: ignore[misc]  # transformers is untyped here
    """A transformers cache whose memory is reserved once, and taken as blocks are handed out.

    Blocks of rollouts lie at its beginning, those of prompts, which several rollouts read, at its end. On a CPU memory
    that nobody has written takes no place; on a GPU all of it is taken at once, so that addresses do not change.
    """

    def __init__(self, spec: KVCacheSpec, tokens: int, *, recorded: bool = False) -> None:
        """Of so many tokens; `recorded` steps read more blocks than are in use."""
        super().__init__(layers=[])
        self.spec = spec
        self.tokens = tokens = -(-tokens // BLOCK) * BLOCK  # the end lies as any other cache's does in a cache line
        self._recorded = recorded
        self.attended = set[int]()  # layers that have called `attend`
        cuda = spec.device.type == "cuda"
        make = torch.zeros if cuda or recorded else torch.empty
        size = (spec.layers, (tokens + SPARE) * spec.heads * spec.width)
        self._keys, self._values = (make(size, dtype=spec.dtype, device=spec.device) for _ in range(2))
        exact = torch.promote_types(spec.dtype, torch.float32)
        self._mask = make(tokens + SPARE, dtype=exact, device=spec.device)
        self.no_mask = torch.zeros(1, 1, 1, 1, dtype=spec.dtype, device=spec.device)
        self._front, self._back = (tokens, 0) if cuda else (0, 0)  # tokens at either end that were in use ever

    @property
    def bytes(self) -> int:
        """Memory of all keys and values that are or were in use."""
        return min(self._front + self._back, self.tokens) * self.spec.bytes_per_token

    def begin(self, pool: BlockPool) -> None:
        """A request begins: nothing is in use."""
        self.own = self._section(pool.own.width, reverse=False)
        self.prompts = self._section(pool.prompts.width, reverse=True)
        self.pool = pool
        self._written = 0  # columns of own blocks that any row has written, or more
        if self._recorded:
            self._mask.zero_()  # a block that nobody wrote is visible, as a row that sees nothing gets NaN

    def add_prompts(self, tokens: IntArray) -> IntArray:
        """Blocks for prompts of so many tokens; their numbers."""
        blocks = self.pool.prompts.blocks(tokens)
        numbers = self.pool.prompts.add(blocks)
        self._hand_out(prompts=int(blocks.sum()))
        return numbers

    def add_rows(self, tokens: IntArray) -> None:
        """Blocks for new rows that have so many tokens."""
        if tokens.any():  # that were put back
            self._written = self.pool.own.width
        blocks = self.pool.own.blocks(tokens)
        self.pool.own.add(blocks)
        self._hand_out(own=int(blocks.sum()))

    def extend(self, rows: IntArray) -> None:
        """One more block for each of these rows."""
        self.pool.own.extend(rows)
        self._hand_out(own=len(rows))

    def remove_rows(self, rows: IntArray) -> None:
        """The blocks of these rows are free, and the last rows have their numbers."""
        self._copy(self.own, *self.pool.own.remove(rows))

    def remove_prompts(self, prompts: IntArray) -> None:
        """The blocks of these prompts are free, and the last prompts have their numbers."""
        self._copy(self.prompts, *self.pool.prompts.remove(prompts))

    def _hand_out(self, *, own: int = 0, prompts: int = 0) -> None:
        """The last so many blocks in use are new: their columns are hidden until they are written. Memory that was
        never used is cleared, as attention multiplies by a weight of 0 what is hidden, and 0 x NaN is NaN.
        """
        for section, table, count in ((self.own, self.pool.own, own), (self.prompts, self.pool.prompts, prompts)):
            if count:
                section.mask[section.piece(table.used - count, table.used)] = -torch.inf
        each, end = self.spec.heads * self.spec.width, self.tokens
        front, back = (min(table.tokens, end) for table in (self.pool.own, self.pool.prompts))
        if front > self._front or back > self._back:
            for flat in (self._keys, self._values):
                flat[:, self._front * each : front * each] = 0
                flat[:, (end - back) * each : (end - self._back) * each] = 0
        self._front, self._back = max(self._front, front), max(self._back, back)

    def _copy(self, section: BlockSection, source: IntArray, target: IntArray) -> None:
        """Overwrite blocks `target` by blocks `source`."""
        if not len(source):
            return
        device = self.spec.device
        begin, end = (torch.from_numpy(section.at(blocks).copy()).to(device) for blocks in (source, target))
        columns = self._written if section is self.own else section.mask.shape[1]
        with distinct_places():
            section.keys[:, end, ..., :columns] = section.keys[:, begin, ..., :columns]
            section.values[:, end, :, :columns] = section.values[:, begin, :, :columns]
            section.mask[end] = section.mask[begin]

    def begin_step(self, shape: Shape, arrays: dict[str, Tensor]) -> None:
        """The next forward pass reads so much, by these index arrays (see layout.py), and writes one token per row."""
        self.shape, self._index, self._written = shape, arrays, shape.columns
        with distinct_places():
            self.own.mask[arrays["block"], arrays["column"]] = 0
        columns = arrays["column"]
        apart = self._recorded or columns.is_cuda  # rows that only fill a shape have no block to write into
        self._together = None if apart or not shape.in_order else _equal(columns)

    def begin_pass(self) -> None:
        """What all layers of a forward pass read: part of a step that is recorded."""
        shape, index = self.shape, self._index
        if shape.single:
            prompt = self.prompts.mask[self.prompts.piece(0, shape.prompt_blocks)]
            own = self.own.mask[: shape.blocks, : shape.columns]
            own = own if shape.in_order else own.index_select(0, index["own_table"][:, 0])
            self._row_mask = torch.cat([prompt.index_select(0, index["prompt_block"]), own], dim=1)[:, None, None]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one token per row [R, heads, 1, D]. What is returned is not used: `attend` reads the blocks."""
        keys, values, rows = key_states[:, :, 0], value_states[:, :, 0], self.shape.rows
        if self._together is None:
            self.own.write(layer_idx, self._index["block"], self._index["column"], keys, values)
        else:  # rollouts that began together: several times as fast
            self.own.keys[layer_idx, :rows, ..., self._together] = keys
            self.own.values[layer_idx, :rows, :, self._together] = values
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Models read it where they are given no positions; here they always are."""
        return 0

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """Attention of queries [R, Q, D], already scaled, over each row's prompt and own tokens.

        The queries of the rows of a prompt are one matrix, so that its keys and values are read once for all.
        """
        self.attended.add(layer)
        grouped = queries.view(self.shape.rows, self.spec.heads, -1, self.spec.width)  # [R, heads, queries per head, D]
        attended = self._attend_single(layer, grouped) if self.shape.single else self._attend_many(layer, grouped)
        return attended.to(queries.dtype).view(queries.shape)

    def _attend_single(self, layer: int, grouped: Tensor) -> Tensor:
        """Where no text takes more than a block: one softmax over both."""
        keys, values, _ = self._prompt_piece(layer)
        own_keys, own_values, _ = self._own_piece(layer)
        width = keys.shape[-1]
        scores = self._row_mask.new_empty(*grouped.shape[:3], width + self.shape.columns)
        scores[..., :width] = self._by_row(self._by_prompt(grouped) @ keys)
        scores[..., width:] = self._own_rows(self._by_owner(grouped) @ own_keys)
        shares = scores.add_(self._row_mask).softmax(dim=-1)
        on_prompt, on_own = shares[..., :width].to(keys.dtype), shares[..., width:].to(keys.dtype)
        output = self._by_row(self._by_prompt(on_prompt) @ values)
        return output.add_(self._own_rows(self._by_owner(on_own) @ own_values))

    def _attend_many(self, layer: int, grouped: Tensor) -> Tensor:
        """Each block by itself, then those of a text joined, then prompt and own tokens."""
        shape = self.shape
        output, total = per_block(self._by_prompt(grouped), *self._prompt_piece(layer))
        if shape.prompt_longest > 1:
            output, total = joined(output, total, **self._joining("prompt"))
        output, total = self._by_row(output), self._by_row(total[..., None])
        own, own_total = per_block(self._by_owner(grouped), *self._own_piece(layer))
        if shape.longest > 1:
            own, own_total = joined(own, own_total, **self._joining("own"))
        else:
            own, own_total = self._own_rows(own), self._own_rows(own_total)
        return torch.lerp(own.to(total.dtype), output.to(total.dtype), (total - own_total[..., None]).sigmoid_())

    def _joining(self, kind: str) -> dict[str, Any]:
        """Arguments of `joined`."""
        return {name: self._index[f"{kind}_{name}"] for name in ("table", "held", "place", "order", "begins")}

    def _prompt_piece(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and mask of the prompts in use."""
        piece = self.prompts.piece(0, self.shape.prompt_blocks)
        return self.prompts.keys[layer, piece], self.prompts.values[layer, piece], self.prompts.mask[piece]

    def _own_piece(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and mask of the rollouts' own blocks in use."""
        own, blocks, columns = self.own, self.shape.blocks, self.shape.columns
        keys, values = own.keys[layer, :blocks, ..., :columns], own.values[layer, :blocks, :, :columns]
        return keys, values, own.mask[:blocks, :columns]

    def _by_prompt(self, of_rows: Tensor) -> Tensor:
        """[R, heads, q, X] as the matrices that prompts' blocks meet [M, heads, readers x q, X]."""
        entries = of_rows.flatten(0, 1).index_select(0, self._index["reader"].flatten())
        return entries.view(self.shape.prompt_blocks, self.spec.heads, -1, of_rows.shape[-1])

    def _by_row(self, of_prompts: Tensor) -> Tensor:
        """What `_by_prompt` gave, multiplied, in the order of rows again: [R, heads, q, Y]."""
        blocks, heads, places, last = of_prompts.shape
        entries = of_prompts.reshape(blocks * heads * self.shape.readers, -1)
        per_row = entries.index_select(0, self._index["entry"].flatten())
        return per_row.view(self.shape.rows, heads, places // self.shape.readers, last)

    def _by_owner(self, of_rows: Tensor) -> Tensor:
        """[R, ...] as own blocks meet them: [N, ...]."""
        return of_rows if self.shape.in_order else of_rows.index_select(0, self._index["own_owner"])

    def _own_rows(self, of_blocks: Tensor) -> Tensor:
        """[N, ...] of rows with one block each, in the order of rows: [R, ...]."""
        return of_blocks if self.shape.in_order else of_blocks.index_select(0, self._index["own_table"][:, 0])

    def _section(self, width: int, *, reverse: bool) -> BlockSection:
        layers, heads, head = self.spec.layers, self.spec.heads, self.spec.width
        most = (self.tokens + (0 if reverse else SPARE)) // width
        first = self.tokens - most * width if reverse else 0
        begin, end = first * heads * head, (first + most * width) * heads * head
        keys = self._keys[:, begin:end].view(layers, most, heads, head, width)
        values = self._values[:, begin:end].view(layers, most, heads, width, head)
        return BlockSection(keys, values, self._mask[first : first + most * width].view(most, width), reverse)


def _equal(columns: Tensor) -> int | None:
    """The column of all, if it is one."""
    first = int(columns[0])
    return first if bool((columns == first).all()) else None
