"""Index arrays that match queries with blocks in the next forward pass."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from winnow.engines.native.blocks import BlockPool
from winnow.engines.native.shapes import Shape
from winnow.records import IntArray


def own_arrays(pool: BlockPool, shape: Shape) -> Mapping[str, IntArray]:
    """For blocks of rollouts: [N] the row of each and its index in the flat table, [R, K] the table, [R] blocks per
    row.

    Padding repeats row 0 or block 0, and its products are not used.
    """
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
    """For blocks of prompts: [M] and [S, K] as for rollouts; [M, heads, readers] the row and head of each query of a
    block; [R, heads] the index of a row's result among them; [R] the first block of a row's prompt.

    Prompts are at the end of the cache in reverse order, so the arrays are reversed.
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
    """[N] the numbers of blocks sequence by sequence, and [S + 1] the start of each sequence and of the padding."""
    order = _padded(table[np.arange(table.shape[1]) < held[:, None]], blocks)
    return {f"{kind}_order": order, f"{kind}_starts": np.concatenate([[0], np.cumsum(held)])}


def _padded(array: IntArray, length: int) -> IntArray:
    """The array, extended with zeros to [length]."""
    out = np.zeros(length, dtype=np.int64)
    out[: len(array)] = array
    return out
