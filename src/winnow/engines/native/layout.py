"""Which queries meet which blocks in the next forward pass: index arrays, from what the sequences hold."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from winnow.engines.native.blocks import BlockPool
from winnow.engines.native.shapes import Shape
from winnow.records import IntArray


def own_arrays(pool: BlockPool, shape: Shape) -> Mapping[str, IntArray]:
    """For blocks of rollouts: [N] the row of each and its place in the table, [R, K] the table, [R] how many are held.

    What is there only to fill a shape repeats row 0 or block 0, and its product is not used.
    """
    own, rows, width = pool.own, pool.own.sequences, shape.longest
    owner = _padded(own.owner[: own.used], shape.blocks)
    table = np.zeros((shape.rows, width), dtype=np.int64)
    table[:rows, : own.table.shape[1]] = own.table[:rows, :width]
    held = _padded(own.held[:rows], shape.rows)
    # What lies behind the blocks that a row holds is of an earlier row, and may be out of the piece that is read.
    table[np.arange(width) >= held[:, None]] = 0
    place = owner * width + _padded(own.ordinal[: own.used], shape.blocks)
    arrays = {"own_owner": owner, "own_place": place, "own_table": table, "own_held": held}
    return {**arrays, **_in_turn("own", table, held, shape.blocks)}


def prompt_arrays(pool: BlockPool, shape: Shape, prompt_of_row: IntArray, heads: int) -> Mapping[str, IntArray]:
    """For blocks of prompts: [M] and [S, K] as for rollouts; [M, heads, readers] the row and head of each query that a
    block meets; [R, heads] where a row's answer is among them; [R] the block of a row's prompt, where it is one.

    They lie at the end of the cache, the first of them last.
    """
    prompts, blocks, readers = pool.prompts, shape.prompt_blocks, shape.readers
    owner = _padded(prompts.owner[: prompts.used], blocks)[::-1].copy()
    place = (owner * shape.prompt_longest + _padded(prompts.ordinal[: prompts.used], blocks)[::-1]).copy()
    held = _padded(prompts.held[: prompts.sequences], shape.prompts)
    table = np.zeros((shape.prompts, shape.prompt_longest), dtype=np.int64)
    known = prompts.table[: prompts.sequences, : shape.prompt_longest]
    table[: prompts.sequences, : known.shape[1]] = known
    table[np.arange(shape.prompt_longest) >= held[:, None]] = 0
    table = blocks - 1 - table

    rows, order = np.arange(len(prompt_of_row)), np.argsort(prompt_of_row, kind="stable")
    counts = np.bincount(prompt_of_row)
    among = np.empty_like(prompt_of_row)  # place of a row among those of its prompt
    among[order] = rows - np.repeat(np.cumsum(counts) - counts, counts)
    row_of = np.zeros((shape.prompts, readers), dtype=np.int64)
    row_of[prompt_of_row, among] = rows
    head = np.arange(heads)
    reader = row_of[owner][:, None] * heads + head[:, None]
    prompt_of_row, among = _padded(prompt_of_row, shape.rows), _padded(among, shape.rows)
    block_of_row = table[prompt_of_row, 0]
    base = block_of_row if shape.prompt_longest == 1 else prompt_of_row
    entry = (base[:, None] * heads + head) * readers + among[:, None]
    return {
        "prompt_place": place,
        "prompt_table": table,
        "prompt_held": held,
        "prompt_block": block_of_row,
        "reader": reader,
        "entry": entry,
        **_in_turn("prompt", table, held, blocks),
    }


def _in_turn(kind: str, table: IntArray, held: IntArray, blocks: int) -> Mapping[str, IntArray]:
    """[N] the numbers of blocks sequence by sequence, and [S + 1] where each sequence begins among them, and what only
    fills the shape.
    """
    order = _padded(table[np.arange(table.shape[1]) < held[:, None]], blocks)
    return {f"{kind}_order": order, f"{kind}_begins": np.concatenate([[0], np.cumsum(held)])}


def _padded(array: IntArray, length: int) -> IntArray:
    """[length] with zeros behind it."""
    out = np.zeros(length, dtype=np.int64)
    out[: len(array)] = array
    return out
