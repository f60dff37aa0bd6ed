"""The key and value cache of decoding: one memory in blocks of rollouts and of prompts, and attention over it.

Attention takes one token per row. Its work grows with the tokens written: only queries, scores and outputs are
gathered, not keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import Cache

from winnow.engines.native.cuda import Shape
from winnow.engines.native.memory import BLOCK
from winnow.engines.native.scheduler import BlockPool
from winnow.engines.policy_copy import KVCacheSpec
from winnow.models.device import distinct_places
from winnow.records import IntArray

SPARE = 2 * BLOCK  # tokens behind the cache, to which padding rows write


def attend_per_block(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Attention of queries [N, heads, X, D] within their block of keys [N, heads, D, C] and values [N, heads, C, D].

    Returns the outputs [N, heads, X, D] and the log-sum-exp of the scores [N, heads, X]. `mask` [N, C] is added to the
    scores.
    """
    scores = (queries @ keys).to(mask.dtype).add_(mask[:, None, None])
    top, shares = scores.amax(dim=-1), scores.softmax(dim=-1)
    # The largest share is exp(top - total), so this is the total without a second pass over the scores
    return shares.to(values.dtype) @ values, top - shares.amax(dim=-1).log_()


def combine_blocks(
    output: Tensor, total: Tensor, *, table: Tensor, held: Tensor, place: Tensor, order: Tensor, starts: Tensor
) -> tuple[Tensor, Tensor]:
    """Combine the results of `attend_per_block` per sequence: outputs [S, heads, X, D] and totals [S, heads, X].

    A sequence has `held` [S] blocks, listed in its line of `table` [S, K]; `place` [N] is the index of each block in
    the flat table. `order` [N] lists the blocks sequence by sequence, and `starts` [S + 1] is the first index of each
    sequence in it; the last entry is the start of the blocks that belong to none. Each block is weighted by its share
    of the sum, as in flash-decoding (Dao et al., 2023). The number of terms is the number of blocks in use, independent
    of the longest sequence.
    """
    absent = torch.arange(table.shape[1], device=held.device) >= held[:, None]
    each = total.index_select(0, table.flatten()).view(*table.shape, *total.shape[1:])
    each = each.masked_fill_(absent[:, :, None, None], -torch.inf)
    whole = each.logsumexp(dim=1)
    weights = each.sub_(whole[:, None]).exp_().flatten(0, 1).index_select(0, place)
    output = output.to(total.dtype).mul_(weights[..., None])
    # embedding_bag sums in one order on every device, and takes at most half the time of index_add_
    sums = functional.embedding_bag(order, output.flatten(1), starts, mode="sum")[:-1]
    return sums.view(len(table), *output.shape[1:]), whole


@dataclass(frozen=True, slots=True)
class BlockSection:
    """One end of the cache, in blocks of one width: keys [layers, N, heads, D, W] and values [layers, N, heads, W, D],
    in the layout that attention multiplies, and the mask [N, W] that is added to scores. In blocks in use, the mask is
    -inf where nothing is written.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor
    reverse: bool  # block 0 is the last in memory

    def at(self, blocks: IntArray) -> IntArray:
        """Indices of blocks in the tensors, from their numbers."""
        return self.mask.shape[0] - 1 - blocks if self.reverse else blocks

    def piece(self, first: int, end: int) -> slice:
        """The slice of the tensors with blocks `first` to `end` - 1."""
        most = self.mask.shape[0]
        return slice(most - end, most - first) if self.reverse else slice(first, end)

    def write(self, layer: int, block: Tensor, column: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write keys and values [T, heads, D] of tokens, each to its column [T] of its block [T]."""
        with distinct_places():
            self.keys[layer][block, :, :, column] = keys
            self.values[layer][block, :, column] = values


class KVCache(Cache):  # type: ignore[misc]  # transformers is untyped here
    """A transformers cache whose memory is reserved once and used as blocks are allocated.

    Blocks of rollouts are at its beginning, and blocks of prompts, which several rollouts read, at its end. On a CPU,
    memory that was never written is not resident; on a GPU all of it is, so that addresses do not change.
    """

    def __init__(self, spec: KVCacheSpec, tokens: int, *, recorded: bool = False) -> None:
        """A cache of `tokens` tokens; `recorded` steps read more blocks than are in use."""
        super().__init__(layers=[])
        self.spec = spec
        # Rounded up, so that the end, where prompts are, has the same alignment in every cache: it can change bits
        self.tokens = tokens = -(-tokens // BLOCK) * BLOCK
        self._recorded = recorded
        self.attended = set[int]()  # layers that have called `attend`
        cuda = spec.device.type == "cuda"
        make = torch.zeros if cuda or recorded else torch.empty
        size = (spec.layers, (tokens + SPARE) * spec.heads * spec.width)
        self._keys, self._values = (make(size, dtype=spec.dtype, device=spec.device) for _ in range(2))
        exact = torch.promote_types(spec.dtype, torch.float32)
        self._mask = make(tokens + SPARE, dtype=exact, device=spec.device)
        self.no_mask = torch.zeros(1, 1, 1, 1, dtype=spec.dtype, device=spec.device)
        self._front, self._back = (tokens, 0) if cuda else (0, 0)  # tokens at either end that were ever in use

    @property
    def bytes(self) -> int:
        """Memory of all keys and values that are or were in use."""
        return min(self._front + self._back, self.tokens) * self.spec.bytes_per_token

    def begin(self, pool: BlockPool) -> None:
        """Start a request; no block is in use."""
        self.own = self._section(pool.own.width, reverse=False)
        self.prompts = self._section(pool.prompts.width, reverse=True)
        self.pool = pool
        self._written = 0  # upper bound of the columns of own blocks that any row has written
        if self._recorded:
            self._mask.zero_()  # unused blocks are visible: the softmax of a row without visible columns is NaN

    def add_prompts(self, tokens: IntArray) -> IntArray:
        """Allocate blocks for prompts of these lengths; returns the prompts' numbers."""
        blocks = self.pool.prompts.blocks(tokens)
        numbers = self.pool.prompts.add(blocks)
        self._allocate(prompts=int(blocks.sum()))
        return numbers

    def add_rows(self, tokens: IntArray) -> None:
        """Allocate blocks for new rows with this many tokens each."""
        if tokens.any():  # preempted rollouts, whose tokens will be read again
            self._written = self.pool.own.width
        blocks = self.pool.own.blocks(tokens)
        self.pool.own.add(blocks)
        self._allocate(own=int(blocks.sum()))

    def extend(self, rows: IntArray) -> None:
        """Allocate one more block for each of these rows."""
        self.pool.own.extend(rows)
        self._allocate(own=len(rows))

    def remove_rows(self, rows: IntArray) -> None:
        """Free the blocks of these rows; the last rows take their numbers."""
        self._copy(self.own, *self.pool.own.remove(rows))

    def remove_prompts(self, prompts: IntArray) -> None:
        """Free the blocks of these prompts; the last prompts take their numbers."""
        self._copy(self.prompts, *self.pool.prompts.remove(prompts))

    def _allocate(self, *, own: int = 0, prompts: int = 0) -> None:
        """Hide the columns of the last `own` and `prompts` blocks in use, which are new, until they are written.

        Memory that was never used is cleared: attention multiplies hidden values by 0, and 0 x NaN is NaN.
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
        """Copy blocks `source` to blocks `target`."""
        if not len(source):
            return
        begin, end = section.at(source), section.at(target)
        columns = self._written if section is self.own else section.mask.shape[1]
        keys, values = section.keys[..., :columns], section.values[..., :columns, :]
        if self.spec.device.type == "cpu":  # NumPy copies blocks whole, in a third of the time
            for states in (keys, values, section.mask[None]):
                # As an array; bfloat16, which NumPy does not have, as integers
                for layer in (states.view(torch.int16) if states.dtype == torch.bfloat16 else states).numpy():
                    layer[end] = layer[begin]
            return
        first, last = (torch.from_numpy(blocks.copy()).to(self.spec.device) for blocks in (begin, end))
        with distinct_places():
            keys[:, last], values[:, last] = keys[:, first], values[:, first]
            section.mask[last] = section.mask[first]

    def begin_step(self, shape: Shape, arrays: dict[str, Tensor], together: int | None) -> None:
        """Set the shape and index arrays (see decoder.py) of the next forward pass, which writes one token per row.

        `together` is the column that all rows write, if row r has block r and no other; None elsewhere.
        """
        self.shape, self._index, self._together, self._written = shape, arrays, together, shape.columns
        if together is not None:
            self.own.mask[: shape.rows, together] = 0
            return
        with distinct_places():
            self.own.mask[arrays["block"], arrays["column"]] = 0

    def begin_pass(self) -> None:
        """Make what all layers share: the pieces of the cache that they read, and if every text has one block the
        mask. This is part of a recorded step.
        """
        shape, index, own, prompts = self.shape, self._index, self.own, self.prompts
        piece = prompts.piece(0, shape.prompt_blocks)
        self._prompt_pieces = list(zip(prompts.keys[:, piece].unbind(), prompts.values[:, piece].unbind(), strict=True))
        keys = own.keys[:, : shape.blocks, ..., : shape.columns].unbind()
        self._own_pieces = list(zip(keys, own.values[:, : shape.blocks, :, : shape.columns].unbind(), strict=True))
        self._masks = prompts.mask[piece], own.mask[: shape.blocks, : shape.columns]
        if self._together is not None:
            keys = own.keys[:, : shape.rows, ..., self._together].unbind()
            self._targets = list(zip(keys, own.values[:, : shape.rows, :, self._together].unbind(), strict=True))
        if shape.single:
            of_prompts, of_own = self._masks
            self._prompt_mask = of_prompts.index_select(0, index["prompt_block"])[:, None, None]
            # Rows that write one column have written all columns before it
            self._own_mask = None if self._together is not None else self._own_rows(of_own)[:, None, None]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one token per row [R, heads, 1, D]. The returned values are not used, because `attend` reads blocks."""
        self.write(layer_idx, key_states[:, :, 0], value_states[:, :, 0])
        return key_states, value_states

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Write keys and values [R, heads, D] of one token per row."""
        if self._together is None:
            self.own.write(layer, self._index["block"], self._index["column"], keys, values)
        else:  # a slice is several times as fast
            target_keys, target_values = self._targets[layer]
            target_keys.copy_(keys)
            target_values.copy_(values)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: models use this only without explicit position ids, which decoding always passes."""
        return 0

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """Attention of scaled queries [R, Q, D] over each row's prompt and own tokens.

        The queries of all rows of a prompt form one matrix, so its keys and values are read once.
        """
        self.attended.add(layer)
        grouped = queries.view(self.shape.rows * self.spec.heads, -1, self.spec.width)  # [R x heads, queries each, D]
        attended = self._attend_single(layer, grouped) if self.shape.single else self._attend_many(layer, grouped)
        return attended.to(queries.dtype).view(queries.shape)

    def _attend_single(self, layer: int, grouped: Tensor) -> Tensor:
        """Attention if no text has more than one block: one softmax over prompt and own tokens."""
        shape, heads = self.shape, self.spec.heads
        keys, values = (states.flatten(0, 1) for states in self._prompt_pieces[layer])
        own_keys, own_values = (states.flatten(0, 1) for states in self._own_pieces[layer])
        width = keys.shape[-1]
        scores = self._prompt_mask.new_empty(shape.rows, heads, grouped.shape[1], width + shape.columns)
        on_prompt = self._by_row(torch.bmm(self._by_prompt(grouped), keys))
        torch.add(on_prompt.view(*scores.shape[:3], width), self._prompt_mask, out=scores[..., :width])
        on_own = self._own_rows(torch.bmm(self._by_owner(grouped), own_keys))
        scores[..., width:] = on_own.view(*scores.shape[:3], shape.columns)
        if self._own_mask is not None:
            scores[..., width:].add_(self._own_mask)
        shares = scores.softmax(dim=-1).to(keys.dtype).flatten(0, 1)
        output = self._by_row(torch.bmm(self._by_prompt(shares[..., :width]), values))
        return output.add_(self._own_rows(torch.bmm(self._by_owner(shares[..., width:]), own_values)))

    def _attend_many(self, layer: int, grouped: Tensor) -> Tensor:
        """Attention per block; then the blocks of each text are combined, and last prompt and own tokens."""
        shape, heads = self.shape, self.spec.heads
        prompt_mask, own_mask = self._masks
        queries = self._by_prompt(grouped).unflatten(0, (shape.prompt_blocks, heads))  # type: ignore[no-untyped-call]
        output, total = attend_per_block(queries, *self._prompt_pieces[layer], prompt_mask)
        if shape.prompt_longest > 1:
            output, total = combine_blocks(output, total, **self._combine_arguments("prompt"))
        output, total = (self._by_row(each.flatten(0, 1)) for each in (output, total[..., None]))
        queries = self._by_owner(grouped).unflatten(0, (shape.blocks, heads))  # type: ignore[no-untyped-call]
        own, own_total = attend_per_block(queries, *self._own_pieces[layer], own_mask)
        if shape.longest > 1:
            own, own_total = combine_blocks(own, own_total, **self._combine_arguments("own"))
        own, own_total = own.flatten(0, 1), own_total.flatten(0, 1)
        if shape.longest == 1:
            own, own_total = self._own_rows(own), self._own_rows(own_total)
        # sigmoid(a - b) = exp(a) / (exp(a) + exp(b)): the prompt's share of the softmax over both
        return torch.lerp(own.to(total.dtype), output.to(total.dtype), (total - own_total[..., None]).sigmoid_())

    def _combine_arguments(self, kind: str) -> dict[str, Any]:
        """The index arguments of `combine_blocks`."""
        return {name: self._index[f"{kind}_{name}"] for name in ("table", "held", "place", "order", "starts")}

    def _by_prompt(self, of_rows: Tensor) -> Tensor:
        """Gather [R x heads, q, X] into one matrix per block of prompts and head: [M x heads, readers x q, X]."""
        entries = of_rows.index_select(0, self._index["reader"])
        return entries.view(self.shape.prompt_blocks * self.spec.heads, -1, of_rows.shape[-1])

    def _by_row(self, of_prompts: Tensor) -> Tensor:
        """Gather products of `_by_prompt` matrices back into the order of rows: [R x heads, q, Y]."""
        entries = of_prompts.reshape(len(of_prompts) * self.shape.readers, -1, of_prompts.shape[-1])
        return entries.index_select(0, self._index["entry"])

    def _by_owner(self, of_rows: Tensor) -> Tensor:
        """Gather [R x heads, ...] into the order of own blocks: [N x heads, ...]."""
        if self.shape.in_order:
            return of_rows
        each: Tensor = of_rows.unflatten(0, (self.shape.rows, self.spec.heads))  # type: ignore[no-untyped-call]
        return each.index_select(0, self._index["own_owner"]).flatten(0, 1)

    def _own_rows(self, of_blocks: Tensor) -> Tensor:
        """Gather [N or N x heads, ...] of rows with one block each into the order of rows: [R or R x heads, ...]."""
        if self.shape.in_order:
            return of_blocks
        each: Tensor = of_blocks.unflatten(0, (self.shape.blocks, -1))  # type: ignore[no-untyped-call]
        return each.index_select(0, self._index["own_table"][:, 0]).flatten(0, 1)

    def _section(self, width: int, *, reverse: bool) -> BlockSection:
        layers, heads, head = self.spec.layers, self.spec.heads, self.spec.width
        most = (self.tokens + (0 if reverse else SPARE)) // width
        first = self.tokens - most * width if reverse else 0
        begin, end = first * heads * head, (first + most * width) * heads * head
        keys = self._keys[:, begin:end].view(layers, most, heads, head, width)
        values = self._values[:, begin:end].view(layers, most, heads, width, head)
        return BlockSection(keys, values, self._mask[first : first + most * width].view(most, width), reverse)
