"""Which rollouts are sampled together: prompts in blocks, waiting rollouts, and how large a cache a request takes."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from winnow.engines.native.cache_size import CacheSize
from winnow.engines.requests import PendingRollout
from winnow.errors import EngineError
from winnow.records import Prompt

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class PromptBlock:
    """A prompt and some of its rollouts, which read one copy of its keys and values."""

    prompt: Prompt
    unfinished: int  # rollouts that still read the prompt
    number: int = -1  # of the block in the cache, from the start of its first rollout to the end of its last
    logits: Tensor | None = None  # [V] after the prompt


def in_blocks(rollouts: Sequence[PendingRollout]) -> list[tuple[PromptBlock, PendingRollout]]:
    """Every rollout with its block, prompts of like length together (least padding).

    A block has no more rollouts than a prompt gets on average: one prompt with many does not make every other's block
    as wide. With equal counts there is one block per prompt.
    """
    by_length = sorted(rollouts, key=lambda rollout: (len(rollout.prompt.tokens), rollout.prompt_index))
    groups = [list(group) for _, group in itertools.groupby(by_length, key=lambda rollout: rollout.prompt_index)]
    each = -(-len(rollouts) // max(1, len(groups)))
    found = []
    for chunk in (group[i : i + each] for group in groups for i in range(0, len(group), each)):
        block = PromptBlock(chunk[0].prompt, unfinished=len(chunk))
        found += [(block, rollout) for rollout in chunk]
    return found


def unrounded(size: CacheSize) -> CacheSize:
    """What is allocated where no more is than is needed."""
    return size


class Scheduler:
    """The waiting rollouts of a request, and the blocks of the cache that their prompts take."""

    def __init__(
        self,
        rollouts: Sequence[PendingRollout],
        *,
        rows: int,
        columns: int,
        tokens: int | None = None,
        allocated: Callable[[CacheSize], CacheSize] = unrounded,
    ) -> None:
        """At most `rows` rollouts at once, of `columns` tokens each, in a cache of at most `tokens` tokens; `allocated`
        says how much is allocated for a size that is needed.

        Raises EngineError where such a cache does not hold a single rollout.
        """
        self._waiting = deque(in_blocks(rollouts))
        blocks = {id(block): block for block, _ in self._waiting}.values()
        prompt = max((len(block.prompt.tokens) for block in blocks), default=0)
        fullest = max((block.unfinished for block in blocks), default=0)

        def size(running: int) -> CacheSize:
            return CacheSize(
                blocks=min(running, len(blocks)),  # a block in use has a row, so there are never more of them
                rows_per_block=fullest,
                prompt_columns=prompt,
                rows=running,
                columns=columns,
            )

        self.size = size(min(rows, len(self._waiting)))
        while tokens is not None and allocated(self.size).tokens() > tokens:
            if self.size.rows == 1:
                raise _too_little(tokens, prompt + columns)
            self.size = size(self.size.rows - 1)
        self._free_blocks = list(range(self.size.blocks))

    def admit(self, running: int) -> list[tuple[PromptBlock, PendingRollout]]:
        """The waiting rollouts that start now: none until an eighth of the rows is free, as a prefill costs a step."""
        free = self.size.rows - running
        if not self._waiting or (free < len(self._waiting) and 8 * free < self.size.rows):
            return []
        return [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]

    def assign_blocks(self, admitted: Sequence[tuple[PromptBlock, PendingRollout]]) -> list[PromptBlock]:
        """The blocks among them that are not in the cache yet, with a number each."""
        new = list({id(block): block for block, _ in admitted if block.number < 0}.values())
        for block in new:
            block.number = self._free_blocks.pop()
        return new

    def release(self, block: PromptBlock) -> None:
        """One of a block's rollouts is finished; after the last one its place in the cache is free again."""
        block.unfinished -= 1
        if block.unfinished == 0:
            self._free_blocks.append(block.number)
            block.number = -1


def _too_little(tokens: int, wanted: int) -> EngineError:
    return EngineError(
        f"rollout.engine.key_value_mb holds {tokens} tokens, and one rollout with its prompt takes up to {wanted}; "
        f"raise it, or lower rollout.max_new_tokens"
    )
