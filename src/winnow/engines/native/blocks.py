"""Which blocks of the cache each prompt and each rollout holds: counted on the host, in whole blocks."""

from __future__ import annotations

import numpy as np

from winnow.records import IntArray


def fill_gaps(removed: IntArray, total: int) -> tuple[IntArray, IntArray]:
    """(source, target): which of `total` places in use move where, so that those in use are the first ones again.

    `fill_gaps(np.array([1, 4]), 6)` is `([5], [1])`: of the places 0, 2, 3, 5 the last takes the gap.
    """
    left = total - len(removed)
    return np.setdiff1d(np.arange(left, total), removed), np.sort(removed[removed < left])


class BlockTable:
    """The blocks of `width` tokens that sequences hold: rollouts, a row each, or prompts.

    Sequences in use are the first `sequences`, blocks in use the first `used`: where some are removed, the last ones
    take their numbers. So attention reads one piece of the cache without holes.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.sequences = self.used = 0
        self.changes = 0  # counted, so that what is made from the tables is made anew
        self.held = np.zeros(0, dtype=np.int64)  # [S] blocks of each sequence
        self.table = np.zeros((0, 1), dtype=np.int64)  # [S, K] their numbers, in the order of the text
        self.owner = np.zeros(0, dtype=np.int64)  # [N] the sequence that holds a block
        self.ordinal = np.zeros(0, dtype=np.int64)  # [N] which of its blocks that is

    def blocks(self, tokens: IntArray) -> IntArray:
        """That hold so many tokens: of 65 and 64 tokens, `BlockTable(64)` makes 2 and 1."""
        return -(-tokens // self.width)

    @property
    def tokens(self) -> int:
        """That the blocks in use have room for."""
        return self.used * self.width

    def add(self, blocks: IntArray) -> IntArray:
        """The numbers of new sequences, which hold so many blocks each."""
        numbers = np.arange(self.sequences, self.sequences + len(blocks))
        self.sequences += len(blocks)
        self.changes += 1
        self.held, self.table = (_at_least(array, self.sequences) for array in (self.held, self.table))
        self.held[numbers] = 0
        for more in range(int(blocks.max(initial=0))):
            self.extend(numbers[blocks > more])
        return numbers

    def extend(self, sequences: IntArray) -> None:
        """One more block for each of these."""
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
        """These are over. Which blocks are to be copied where: (source, target)."""
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
        """Blocks of the sequence that holds most."""
        return int(self.held[: self.sequences].max(initial=0))


class BlockPool:
    """Blocks of rollouts and of prompts, in one memory of so many tokens."""

    def __init__(self, tokens: int, *, own_width: int, prompt_width: int) -> None:
        self.tokens = tokens
        self.own, self.prompts = BlockTable(own_width), BlockTable(prompt_width)

    @property
    def free(self) -> int:
        """Tokens that no block in use has room for."""
        return self.tokens - self.own.tokens - self.prompts.tokens


def _at_least(array: IntArray, length: int) -> IntArray:
    """The array, with zeros behind it where it is shorter; its memory doubles, so that this is rare."""
    if len(array) >= length:
        return array
    grown = np.zeros((max(length, 2 * len(array)), *array.shape[1:]), dtype=array.dtype)
    grown[: len(array)] = array
    return grown
