"""Which rollouts are sampled together: cache blocks for prompts and rollouts, and rollouts that wait for memory.

The assignment of blocks is kept on the host. A prompt's blocks are shared by its rollouts.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from winnow.engines.base import PendingRollout
from winnow.engines.native.memory import block_width, round_to_blocks
from winnow.errors import EngineError
from winnow.records import IntArray, Prompt

if TYPE_CHECKING:
    from torch import Tensor


def fill_gaps(removed: IntArray, total: int) -> tuple[IntArray, IntArray]:
    """(source, target): the moves after which the places in use come first, if `removed` of `total` places are gaps.

    `fill_gaps(np.array([1, 4]), 6)` is `([5], [1])`: of the places 0, 2, 3, 5 the last moves into the gap.
    """
    left, gap = total - len(removed), np.zeros(total, dtype=np.bool_)
    gap[removed] = True
    return left + np.flatnonzero(~gap[left:]), np.flatnonzero(gap[:left])


class BlockTable:
    """Blocks of `width` tokens for each sequence. A sequence is a rollout, in its row, or a prompt.

    Sequences in use are the first `sequences`, and blocks in use the first `used`: if some are removed, the last
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
        gone = np.zeros(self.sequences, dtype=np.bool_)
        gone[sequences] = True
        freed = np.flatnonzero(gone[self.owner[: self.used]])
        source, target = fill_gaps(freed, self.used)
        self.owner[target], self.ordinal[target] = self.owner[source], self.ordinal[source]
        self.table[self.owner[target], self.ordinal[target]] = target
        self.used -= len(freed)
        last, gap = fill_gaps(sequences, self.sequences)
        self.held[gap], self.table[gap] = self.held[last], self.table[last]
        now = np.arange(self.sequences)
        now[last] = gap
        self.owner[: self.used] = now[self.owner[: self.used]]
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


NO_TOKENS = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class SharedPrompt:
    """A prompt and the rollouts of it that read one copy of its keys and values."""

    prompt: Prompt
    unfinished: int  # rollouts that still need the prompt
    readers: int = 0  # running rollouts among them
    number: int = -1  # index among the prompts in the cache; -1 while it is not in the cache
    logits: Tensor | None = None  # [V] after the prompt


@dataclass(slots=True)
class PartialRollout:
    """A waiting or running rollout; `tokens` [L] are those that are read again after it was put back."""

    shared: SharedPrompt
    pending: PendingRollout
    tokens: IntArray = field(default_factory=lambda: NO_TOKENS)
    started: int = -1  # start order
    kept: Sequence[Any] = ()  # its line in each table of `RunningRollouts` when it was put back


def share_prompts(rollouts: Sequence[PendingRollout]) -> list[PartialRollout]:
    """Assign every rollout to a copy of its prompt, sorted by the length of the prompts (least padding).

    A copy of a prompt has at most the average number of rollouts per prompt. Otherwise a prompt with many rollouts
    would widen the query matrices of all prompts. With equal counts there is one copy per prompt.
    """
    by_length = sorted(rollouts, key=lambda rollout: (len(rollout.prompt.tokens), rollout.prompt_index))
    groups = [list(group) for _, group in itertools.groupby(by_length, key=lambda rollout: rollout.prompt_index)]
    each = -(-len(rollouts) // max(1, len(groups)))
    partial = []
    for chunk in (group[i : i + each] for group in groups for i in range(0, len(group), each)):
        shared = SharedPrompt(chunk[0].prompt, unfinished=len(chunk))
        partial += [PartialRollout(shared, pending) for pending in chunk]
    return partial


class Scheduler:
    """The waiting rollouts of a request, and the blocks of running rollouts and their prompts."""

    def __init__(
        self,
        rollouts: Sequence[PendingRollout],
        *,
        rows: int,
        longest: int,
        tokens: int | None = None,
        fixed: bool = False,
    ) -> None:
        """At most `rows` rollouts at once, of at most `longest` tokens each, in a cache of at most `tokens` tokens;
        `fixed`: blocks have the same size in every request.

        Raises EngineError if such a cache has too little room for one rollout.
        """
        waiting = share_prompts(rollouts)
        self._waiting = deque(waiting)
        shared = list({id(rollout.shared): rollout.shared for rollout in waiting}.values())
        self.rows = min(rows, len(waiting))
        self.readers = min(self.rows, max((each.unfinished for each in shared), default=0))  # most rows of one prompt
        prompts = sorted((len(each.prompt.tokens) for each in shared), reverse=True)
        longest_prompt = prompts[0] if prompts else 0
        own, prompt = block_width(longest, fixed=fixed), block_width(longest_prompt, fixed=fixed)
        # A prompt in use has at least one row, so at most `rows` prompts are in use
        in_use = sum(round_to_blocks(length, prompt) for length in prompts[: self.rows])
        wanted = self.rows * round_to_blocks(longest, own) + in_use
        least = round_to_blocks(longest, own) + round_to_blocks(longest_prompt, prompt)
        if tokens is not None and least > tokens:
            raise EngineError(
                f"there is room for the keys and values of {tokens} tokens (rollout.engine.key_value_mb, or the "
                f"device's free memory), and one rollout with its prompt needs up to {least}",
                remedy="raise it, or lower rollout.max_new_tokens",
                key="rollout.engine.key_value_mb",
                code="engine.memory",
            )
        self._bounded = tokens is not None and tokens < wanted
        self.pool = BlockPool(min(wanted, tokens or wanted), own_width=own, prompt_width=prompt)
        self._growing = own if longest > own else 0  # tokens of the next block that a running rollout may need
        self._started = 0
        self.preemptions = 0

    def admit(self, running: int) -> list[PartialRollout]:
        """The waiting rollouts that start now.

        None start until an eighth of the rows is free or all waiting ones fit, because a prefill costs as much as a
        step. If memory is short, only those start that leave a free block for each running rollout; if none is
        running, one starts.
        """
        rows = self.rows - running
        if not self._waiting or (rows < len(self._waiting) and 8 * rows < self.rows):
            return []
        admitted: list[PartialRollout] = []
        free, new = self.pool.free, set[int]()
        while self._waiting and len(admitted) < rows:
            rollout = self._waiting[0]
            needed = round_to_blocks(len(rollout.tokens) + 1, self.pool.own.width)
            if rollout.shared.number < 0 and id(rollout.shared) not in new:
                needed += round_to_blocks(len(rollout.shared.prompt.tokens), self.pool.prompts.width)
            # The first rollout always starts: a single one fits, as __init__ has checked
            if self._bounded and free - needed < self._growing * (running + len(admitted)) and running + len(admitted):
                break
            free -= needed
            new.add(id(rollout.shared))
            admitted.append(self._waiting.popleft())
        for rollout in admitted:
            rollout.shared.readers += 1
            rollout.started = self._started = self._started + 1
        return admitted

    def preempt_youngest(self, running: Sequence[PartialRollout]) -> int:
        """Put the youngest running rollout at the front of the waiting ones; returns its row."""
        row = max(range(len(running)), key=lambda row: running[row].started)
        self.put_back(running[row])
        self.preemptions += 1
        return row

    def put_back(self, rollout: PartialRollout) -> None:
        """Put a running rollout at the front of the waiting ones."""
        self._waiting.appendleft(rollout)
        rollout.shared.readers -= 1

    def is_unused(self, shared: SharedPrompt) -> bool:
        """Whether no rollout needs the prompt or, if memory is short, no running rollout does."""
        return shared.unfinished == 0 or (self._bounded and shared.readers == 0)

    def release(self, rollout: PartialRollout) -> None:
        """Release the prompt of a finished rollout."""
        rollout.shared.unfinished -= 1
        rollout.shared.readers -= 1
