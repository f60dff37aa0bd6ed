"""Prefill and decoding on a transformers model: a prompt is read once for all its rows, which decode token by token.

Index arrays match the queries of a pass with blocks of the cache. Prompts and preempted rollouts are read in passes of
several tokens, which write their keys and values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from winnow.engines.hf_generate import left_pad
from winnow.engines.native import memory
from winnow.engines.native.cache import BlockSection, KVCache
from winnow.engines.native.cuda import CudaGraphs, Shape, Uploads, exact_shape, rounded_shape
from winnow.engines.native.plain import PlainWeights, decode, is_plain, plain_weights
from winnow.engines.native.scheduler import BlockPool, Scheduler
from winnow.engines.policy_copy import KVCacheSpec
from winnow.models.backbone import register
from winnow.records import IntArray

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "winnow_shared_prompt"


def own_arrays(pool: BlockPool, shape: Shape) -> Mapping[str, IntArray]:
    """For blocks of rollouts: [N] the row of each and its index in the flat table, [R, K] the table, [R] blocks per
    row. If row r has block r and no other, nothing is gathered, so there are none.

    Padding repeats row 0 or block 0, and its products are not used.
    """
    if shape.in_order:
        return {}
    own, rows, width = pool.own, pool.own.sequences, shape.longest
    owner = _padded(own.owner[: own.used], shape.blocks)
    table = np.zeros((shape.rows, width), dtype=np.int64)
    table[:rows, : own.table.shape[1]] = own.table[:rows, :width]
    held = _padded(own.held[:rows], shape.rows)
    # Entries behind a row's blocks are left from an earlier row, and may be outside the part that is read
    table[np.arange(width) >= held[:, None]] = 0
    place = owner * width + _padded(own.ordinal[: own.used], shape.blocks)
    arrays = {"own_owner": owner, "own_place": place, "own_table": table, "own_held": held}
    return {**arrays, **_in_turn("own", table, held, shape.blocks)}


def prompt_arrays(pool: BlockPool, shape: Shape, prompt_of_row: IntArray, heads: int) -> Mapping[str, IntArray]:
    """For blocks of prompts: [M x heads x readers] the row and head of each query of a block; [R x heads] the index of
    a row's result among them; [R] the first block of a row's prompt. If a prompt has several blocks also [M] and
    [S, K], as for rollouts.

    Prompts are at the end of the cache in reverse order, so the arrays are reversed.
    """
    prompts, blocks, readers = pool.prompts, shape.prompt_blocks, shape.readers
    held = _padded(prompts.held[: prompts.sequences], shape.prompts)
    table = np.zeros((shape.prompts, shape.prompt_longest), dtype=np.int64)
    known = prompts.table[: prompts.sequences, : shape.prompt_longest]
    table[: prompts.sequences, : known.shape[1]] = known
    table[np.arange(shape.prompt_longest) >= held[:, None]] = 0
    table = blocks - 1 - table
    owner = _padded(prompts.owner[: prompts.used], blocks)[::-1]

    rows, order = np.arange(len(prompt_of_row)), np.argsort(prompt_of_row, kind="stable")
    counts = np.bincount(prompt_of_row)
    among = np.empty_like(prompt_of_row)  # index of a row among those of its prompt
    among[order] = rows - np.repeat(np.cumsum(counts) - counts, counts)
    row_of = np.zeros((shape.prompts, readers), dtype=np.int64)
    row_of[prompt_of_row, among] = rows
    head = np.arange(heads)
    reader = row_of[owner][:, None] * heads + head[:, None]
    prompt_of_row, among = _padded(prompt_of_row, shape.rows), _padded(among, shape.rows)
    block_of_row = table[prompt_of_row, 0]
    base = block_of_row if shape.prompt_longest == 1 else prompt_of_row
    entry = (base[:, None] * heads + head) * readers + among[:, None]
    arrays = {"prompt_block": block_of_row, "reader": reader.ravel(), "entry": entry.ravel()}
    if shape.prompt_longest == 1:
        return arrays
    place = owner * shape.prompt_longest + _padded(prompts.ordinal[: prompts.used], blocks)[::-1]
    arrays |= {"prompt_place": place, "prompt_table": table, "prompt_held": held}
    return {**arrays, **_in_turn("prompt", table, held, blocks)}


def _in_turn(kind: str, table: IntArray, held: IntArray, blocks: int) -> Mapping[str, IntArray]:
    """[N] the numbers of blocks sequence by sequence, and [S + 1] the start of each sequence and of the padding."""
    order = _padded(table[np.arange(table.shape[1]) < held[:, None]], blocks)
    return {f"{kind}_order": order, f"{kind}_starts": np.concatenate([[0], np.cumsum(held)])}


def _padded(array: IntArray, length: int) -> IntArray:
    """The array, extended with zeros to [length]."""
    out = np.zeros(length, dtype=np.int64)
    out[: len(array)] = array
    return out


def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, shared: KVCache, scaling: float) -> Tensor:
    """Attention of one new token per row [R, heads, 1, D] over the cache `shared`, which masks each row's tokens.

    Without a cache, in a forward pass over prompts, attention uses `register` (models/backbone.py).
    """
    assert isinstance(module.layer_idx, int)
    return shared.attend(module.layer_idx, query[:, :, 0] * scaling)[:, None]


register(NAME, "shared", attend)


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens [L] to read, and the prompts or the row, by number, whose blocks hold the tokens from `first` on."""

    tokens: IntArray
    prompts: tuple[int, ...] = ()
    row: int | None = None
    first: int = 0


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the indices of texts to read together, shortest first."""
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: lengths[number]):
        if batch and (len(batch) + 1) * lengths[number] > memory.PIECE:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def _read_batch(model: PreTrainedModel, cache: KVCache, texts: Sequence[Text]) -> Tensor:
    """Logits [texts, V]. Several texts are padded on the left; a single one is read in pieces."""
    device = model.device
    if len(texts) == 1:
        tokens, kept = torch.from_numpy(texts[0].tokens)[None].to(device), DynamicCache()
        for start in range(0, tokens.shape[1], memory.PIECE):
            piece = tokens[:, start : start + memory.PIECE]
            positions = torch.arange(start, start + piece.shape[1], device=device)[None]
            out = model(input_ids=piece, position_ids=positions, past_key_values=kept, use_cache=True, logits_to_keep=1)
            kept = out.past_key_values
    else:
        tokens, real = left_pad([text.tokens for text in texts], pad=0, device=device)
        positions = (real.cumsum(dim=-1) - 1).clamp_(min=0)
        out = model(input_ids=tokens, attention_mask=real, position_ids=positions, use_cache=True, logits_to_keep=1)
        kept = out.past_key_values
    for section, arrays in _destinations(cache, texts, width=tokens.shape[1]):
        text, column, block, place = (torch.from_numpy(array).to(device) for array in arrays)
        section.mask[block, place] = 0
        for layer, source in enumerate(kept.layers):
            keys, values = source.keys[text, :, column], source.values[text, :, column]
            section.write(layer, block, place, keys, values)
    logits: Tensor = out.logits[:, -1]
    return logits


def _destinations(
    cache: KVCache, texts: Sequence[Text], *, width: int
) -> Iterator[tuple[BlockSection, tuple[IntArray, IntArray, IntArray, IntArray]]]:
    """For prompts and for rows, four arrays over the tokens to keep: text, column in the batch [.., width], block, and
    column in the block.
    """
    pool = cache.pool
    prompts = [(i, text, number) for i, text in enumerate(texts) for number in text.prompts]
    rows = [(i, text, text.row) for i, text in enumerate(texts) if text.row is not None]
    for section, table, kept in ((cache.prompts, pool.prompts, prompts), (cache.own, pool.own, rows)):
        parts = []
        for i, text, number in kept:
            token = np.arange(len(text.tokens) - text.first)
            block = table.table[number, token // table.width]
            parts.append((np.full(len(token), i), width - len(token) + token, block, token % table.width))
        if parts:
            of, column, block, place = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            yield section, (of, column, section.at(block), place)


class Decoder:
    """Forward passes over the newest token of every row, with a cache whose memory is reserved once.

    It works on rows, independent of their rollouts. The computation depends only on the request, never on the capacity
    that earlier requests reserved: a resumed run must compute the same bits.
    """

    def __init__(
        self, model: PreTrainedModel, tokens: int, rows: int, graphs: CudaGraphs | None = None, *, modules: bool = False
    ) -> None:
        """`tokens` is the size of the cache, `rows` the most rows of a step; with `graphs`, steps are recorded. With
        `modules`, a plain model is decoded by its modules like any other.
        """
        self.rows = rows
        self._modules = modules
        self._weights: PlainWeights | None = None  # of a plain model while it samples
        self.cache = KVCache(KVCacheSpec.of(model), tokens, recorded=graphs is not None)
        self._model, self._graphs = model, graphs
        self._own, self._prompts, self._newest = (Uploads(model.device) for _ in range(3))
        size = (rows, model.config.get_text_config().vocab_size)
        self._logits = None if graphs is None else torch.zeros(size, dtype=model.dtype, device=model.device)

    @contextlib.contextmanager
    def sampling(self, scheduler: Scheduler) -> Iterator[None]:
        """While the model samples for a request: no dropout, no gradients, attention over shared prompts."""
        self._scheduler, self._pool = scheduler, scheduler.pool
        self.cache.begin(scheduler.pool)
        self._shape: Shape | None = None
        self._changes: tuple[int, ...] = ()  # of blocks and rows, for which the shape was made
        self._prompts_key: tuple[int, ...] = ()  # the state for which the index arrays of prompts were made
        self._placements = 0  # calls of `set_prompts`
        training, attention = self._model.training, self._model.config._attn_implementation
        self._model.eval()
        try:
            self._model.set_attn_implementation(NAME)
            with torch.inference_mode():
                if not self._modules and is_plain(self._model):
                    self._weights = plain_weights(self._model)
                yield
        finally:
            self._weights = None  # frees the copies, so they are never older than the model's weights
            self._model.set_attn_implementation(attention)
            self._model.train(training)

    def read(self, texts: Sequence[Text]) -> Tensor:
        """Write the texts' keys and values to their blocks; returns the logits [texts, V] of the next tokens.

        A forward pass reads at most PIECE tokens, padding included: texts of similar length together, longer ones in
        pieces.
        """
        logits: list[Tensor] = [torch.empty(0)] * len(texts)
        for batch in batches([len(text.tokens) for text in texts]):
            for number, row in zip(batch, _read_batch(self._model, self.cache, [texts[i] for i in batch]), strict=True):
                logits[number] = row
        return torch.stack(logits)

    def set_prompts(self, numbers: Sequence[int]) -> None:
        """Set the prompt of each row [R]."""
        self._prompt_of_row = np.array(numbers, dtype=np.int64)
        self._placements += 1

    def decode(self, tokens: IntArray, positions: IntArray, written: IntArray) -> Tensor:
        """Logits [R, V] after the newest tokens [R] at these positions of the text; `written` [R] is the number of
        tokens that each rollout has before its newest one.
        """
        running, most = len(tokens), int(written.max())
        shape = self._arrange(most + 1)
        arrays = self._newest_arrays(tokens, positions, written, shape)
        # Padding rows have no block, and neither may a recorded step depend on a column
        aligned = self._graphs is None and shape.in_order and int(written.min()) == most
        self._step = self._newest.put(arrays)
        self.cache.begin_step(shape, {**self._own_index, **self._prompt_index, **self._step}, most if aligned else None)
        if self._graphs is None:
            return self._forward()
        addresses = (self._own.address, self._prompts.address, self._newest.address)
        return self._graphs.run((shape, *addresses), self._forward)[:running]

    def _arrange(self, columns: int) -> Shape:
        """The shape of a step; rebuilds the index arrays of rollouts and of prompts if blocks or rows have changed.

        `columns` is the most columns that a row has written.
        """
        pool, prompts = self._pool, self._prompt_of_row
        changes = (pool.own.changes, pool.prompts.changes, self._placements)
        if self._shape is not None and changes == self._changes:
            if self._shape.longest == 1 and self._graphs is None:
                self._shape = replace(self._shape, columns=columns)
            return self._shape
        recorded = self._graphs is not None
        shape = rounded_shape(self._scheduler, before=self._shape) if recorded else exact_shape(pool, prompts, columns)
        self._own_index = self._own.put(own_arrays(pool, shape))
        sizes = (shape.rows, shape.prompts, shape.prompt_blocks, shape.prompt_longest, shape.readers)
        of_prompts = (*sizes, pool.prompts.changes, self._placements)
        if of_prompts != self._prompts_key:
            arrays = prompt_arrays(pool, shape, prompts, self.cache.spec.heads)
            self._prompt_index, self._prompts_key = self._prompts.put(arrays), of_prompts
        self._shape, self._changes = shape, changes
        return shape

    def _newest_arrays(
        self, tokens: IntArray, positions: IntArray, written: IntArray, shape: Shape
    ) -> Mapping[str, IntArray]:
        """[rows] tokens, their positions, and the block and column for their keys and values; padding rows write behind
        the cache.
        """
        own, running = self._pool.own, len(tokens)
        ordinal, column = np.divmod(written, own.width)
        block = own.table[np.arange(running), ordinal]
        arrays = {"token": tokens, "position": positions, "block": block, "column": column}
        if shape.rows > running:
            arrays = {name: _padded(array, shape.rows) for name, array in arrays.items()}
            arrays["block"][running:] = -(-self.cache.tokens // own.width)
        return arrays

    def _forward(self) -> Tensor:
        self.cache.begin_pass()
        if self._weights is not None:  # on a CPU, where no step is recorded
            return decode(self._weights, self.cache, self._step["token"], self._step["position"])
        out = self._model(
            input_ids=self._step["token"][:, None],
            attention_mask=self.cache.no_mask,  # `attend` has a mask; without this one the model would make another
            position_ids=self._step["position"][:, None],
            past_key_values=self.cache,
            use_cache=True,
            shared=self.cache,
        )
        logits: Tensor = out.logits[:, -1]
        # The result must not be in the graphs' memory pool, which other recorded steps reuse.
        return logits if self._logits is None else self._logits[: self.cache.shape.rows].copy_(logits)
