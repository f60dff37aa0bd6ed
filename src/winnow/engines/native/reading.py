"""Prefill: forward passes over prompts and preempted rollouts that write their keys and values to the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from winnow.engines.native import cache_size
from winnow.engines.native.blocks import BlockTable
from winnow.engines.native.kv_cache import BlockSection, KVCache
from winnow.engines.padding import left_pad
from winnow.records import IntArray

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens [L] to read, and the prompts or the row, by number, whose blocks hold the tokens from `first` on."""

    tokens: IntArray
    prompts: tuple[int, ...] = ()
    row: int | None = None
    first: int = 0


def read(model: PreTrainedModel, cache: KVCache, texts: Sequence[Text]) -> Tensor:
    """Write the texts' keys and values to their blocks; returns the logits [texts, V] of the next tokens.

    A forward pass reads at most PIECE tokens, padding included: texts of similar length together, longer ones in
    pieces.
    """
    logits: list[Tensor] = [torch.empty(0)] * len(texts)
    for batch in batches([len(text.tokens) for text in texts]):
        for number, row in zip(batch, _read_batch(model, cache, [texts[i] for i in batch]), strict=True):
            logits[number] = row
    return torch.stack(logits)


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the indices of texts to read together, shortest first."""
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: lengths[number]):
        if batch and (len(batch) + 1) * lengths[number] > cache_size.PIECE:
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
        for start in range(0, tokens.shape[1], cache_size.PIECE):
            piece = tokens[:, start : start + cache_size.PIECE]
            positions = torch.arange(start, start + piece.shape[1], device=device)[None]
            out = model(input_ids=piece, position_ids=positions, past_key_values=kept, use_cache=True, logits_to_keep=1)
            kept = out.past_key_values
    else:
        tokens, real = left_pad(texts, pad=0, device=device)
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
        if kept:
            parts = [_destination(table, i, text, number, width) for i, text, number in kept]
            text, column, block, place = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            yield section, (text, column, section.at(block), place)


def _destination(
    table: BlockTable, i: int, text: Text, number: int, width: int
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """The four arrays of `_destinations` for text `i`, and the prompt or row `number`."""
    length = len(text.tokens) - text.first
    token = np.arange(length)
    block = table.table[number, token // table.width]
    return np.full(length, i), width - length + token, block, token % table.width
