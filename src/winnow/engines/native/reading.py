"""Reading texts whose keys and values the cache is to hold: prompts, and rollouts that were put back."""

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
    """Tokens [L] to be read, and who holds those from `first` on: prompts, or a row, by their numbers."""

    tokens: IntArray
    prompts: tuple[int, ...] = ()
    row: int | None = None
    first: int = 0


def read(model: PreTrainedModel, cache: KVCache, texts: Sequence[Text]) -> Tensor:
    """Put the texts' keys and values into the blocks that are held for them; the logits [texts, V] of what comes next.

    A forward pass reads at most PIECE tokens, padding included: texts of like length together, a longer one in pieces.
    """
    logits: list[Tensor] = [torch.empty(0)] * len(texts)
    for batch in batches([len(text.tokens) for text in texts]):
        for number, row in zip(batch, _read_batch(model, cache, [texts[i] for i in batch]), strict=True):
            logits[number] = row
    return torch.stack(logits)


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Numbers of texts that are read together, shortest first."""
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: lengths[number]):
        if batch and (len(batch) + 1) * lengths[number] > cache_size.PIECE:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def _read_batch(model: PreTrainedModel, cache: KVCache, texts: Sequence[Text]) -> Tensor:
    """Logits [texts, V]. Several are padded on the left; one alone is read piece by piece."""
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
    for section, where in _places(cache, texts, width=tokens.shape[1]):
        text, column, block, place = (torch.from_numpy(array).to(device) for array in where)
        section.mask[block, place] = 0
        for layer, source in enumerate(kept.layers):
            keys, values = source.keys[text, :, column], source.values[text, :, column]
            section.write(layer, block, place, keys, values)
    logits: Tensor = out.logits[:, -1]
    return logits


def _places(
    cache: KVCache, texts: Sequence[Text], *, width: int
) -> Iterator[tuple[BlockSection, tuple[IntArray, IntArray, IntArray, IntArray]]]:
    """For prompts and for rows, of every token that is kept: its text, its column there [.., width], its block, and its
    column in the block.
    """
    pool = cache.pool
    prompts = [(i, text, number) for i, text in enumerate(texts) for number in text.prompts]
    rows = [(i, text, text.row) for i, text in enumerate(texts) if text.row is not None]
    for section, table, kept in ((cache.prompts, pool.prompts, prompts), (cache.own, pool.own, rows)):
        if kept:
            parts = [_of_one(table, i, text, number, width) for i, text, number in kept]
            text, column, block, place = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            yield section, (text, column, section.at(block), place)


def _of_one(
    table: BlockTable, i: int, text: Text, number: int, width: int
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    length = len(text.tokens) - text.first
    token = np.arange(length)
    block = table.table[number, token // table.width]
    return np.full(length, i), width - length + token, block, token % table.width
