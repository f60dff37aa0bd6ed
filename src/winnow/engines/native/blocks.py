"""The assignment of cache blocks to prompts and rollouts, kept on the host."""

from __future__ import annotations

import numpy as np

from winnow.records import IntArray


def fill_gaps(removed: IntArray, total: int) -> tuple[IntArray, IntArray]:
    """(source, target): the moves after which the places in use come first, where `removed` of `total` places are gaps.

    `fill_gaps(np.array([1, 4]), 6)` is `([5], [1])`: of the places 0, 2, 3, 5 the last moves into the gap.
    """
    left = total - len(removed)
    return np.setdiff1d(np.arange(left, total), removed), np.sort(removed[removed < left])


class BlockTable:
    """Blocks of `width` tokens for each sequence. A sequence is a rollout, in its row, or a prompt.

    Sequences in use are the first `sequences`, and blocks in use the first `used`: where some are removed, the last
    ones take their numbers. So attention reads one contiguous part of the cache.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.sequences = self.used = 0
        self.changes = 0  # incremented at every change, so that index arrays are rebuilt
        self.held = np.zeros(0, dtype=np.int64)  # [S] number of blocks of each sequence
        self.table = np.zeros((0, 1), dtype=np.int64)  # [S, K] the numbers of its blocks, in the order of the text
        self.owner = np.zeros(0, dtype=np.int64)  # [N] the sequence of each block
        self.ordinal = np.zeros(0, dtype=np.int64)  # [N] the position of the block in its sequence

    def blocks(self, tokens: IntArray) -> IntArray:
        """Number of blocks for each number of tokens: `BlockTable(64)` gives 2 and 1 for 65 and 64 tokens."""
        return -(-tokens // self.width)

    @property
    def tokens(self) -> int:
        """Capacity of the blocks in use, in tokens."""
        return self.used * self.width

    def add(self, blocks: IntArray) -> IntArray:
        """Add sequences with this many blocks each; returns their numbers."""
        numbers = np.arange(self.sequences, self.sequences + len(blocks))
        self.sequences += len(blocks)
        self.changes += 1
        self.held, self.table = (_at_least(array, self.sequences) for array in (self.held, self.table))
        self.held[numbers] = 0
        for more in range(int(blocks.max(initial=0))):
            self.extend(numbers[blocks > more])
        return numbers

    def extend(self, sequences: IntArray) -> None:
        """Add one block to each of these sequences."""
        self.changes += 1
        blocks, ordinals = np.arange(self.used, self.used + len(sequences)), self.held[sequences]
        self.used += len(sequences)
        self.owner, self.ordinal = _at_least(self.owner, self.used), _at_least(self.ordinal, self.used)
        if (longest := int(ordinals.max(initial=-1)) + 1) > self.table.shape[1]:
            self.table = np.pad(self.table, ((0, 0), (0, max(longest, 2 * self.table.shape[1]) - self.table.shape[1])))
        self.table[sequences, ordinals] = blocks
        self.owner[blocks], self.ordinal[blocks] = sequences, ordinals
        self.held[sequences] += 1

    def remove(self, sequences: IntArray) -> tuple[IntArray, IntArray]:
        """Remove sequences; returns the block moves (source, target) that the cache has to make."""
        self.changes += 1
        freed = np.flatnonzero(np.isin(self.owner[: self.used], sequences))
        source, target = fill_gaps(freed, self.used)
        self.owner[target], self.ordinal[target] = self.owner[source], self.ordinal[source]
        self.table[self.owner[target], self.ordinal[target]] = target
        self.used -= len(freed)
        last, gap = fill_gaps(sequences, self.sequences)
        self.held[gap], self.table[gap] = self.held[last], self.table[last]
        for now in gap.tolist():
            self.owner[self.table[now, : self.held[now]]] = now
        self.sequences -= len(sequences)
        return source, target

    def longest(self) -> int:
        """Number of blocks of the sequence with the most blocks."""
        return int(self.held[: self.sequences].max(initial=0))


class BlockPool:
    """Blocks of rollouts and of prompts, in one memory of `tokens` tokens."""

    def __init__(self, tokens: int, *, own_width: int, prompt_width: int) -> None:
        self.tokens = tokens
        self.own, self.prompts = BlockTable(own_width), BlockTable(prompt_width)

    @property
    def free(self) -> int:
        """Tokens of the memory that belong to no block in use."""
        return self.tokens - self.own.tokens - self.prompts.tokens


def _at_least(array: IntArray, length: int) -> IntArray:
    """The array, extended with zeros to at least this length; it doubles, so that copies are rare."""
    if len(array) >= length:
        return array
    grown = np.zeros((max(length, 2 * len(array)), *array.shape[1:]), dtype=array.dtype)
    grown[: len(array)] = array
    return grown
