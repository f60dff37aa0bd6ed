"""The rollouts that are sampled together: prompts shared by rollouts, and rollouts that wait for memory."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from winnow.engines.native.blocks import BlockPool
from winnow.engines.native.cache_size import block_width, round_to_blocks
from winnow.engines.requests import PendingRollout
from winnow.errors import EngineError
from winnow.records import FloatArray, IntArray, Prompt

if TYPE_CHECKING:
    from torch import Tensor


NO_TOKENS, NO_LOGPROBS = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float64)


@dataclass(slots=True)
class SharedPrompt:
    """A prompt and those of its rollouts that read one copy of its keys and values."""

    prompt: Prompt
    unfinished: int  # rollouts that still need the prompt
    readers: int = 0  # running rollouts among them
    number: int = -1  # index among the prompts in the cache; -1 while it is not in the cache
    logits: Tensor | None = None  # [V] after the prompt


@dataclass(slots=True)
class PartialRollout:
    """A waiting or running rollout; `tokens` and `logprobs` [L] are those it had when it was preempted."""

    shared: SharedPrompt
    pending: PendingRollout
    tokens: IntArray = field(default_factory=lambda: NO_TOKENS)
    logprobs: FloatArray = field(default_factory=lambda: NO_LOGPROBS)
    started: int = -1  # start order


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

        Raises EngineError where such a cache has too little room for one rollout.
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
            raise _too_little_memory(tokens, least)
        self._bounded = tokens is not None and tokens < wanted
        self.pool = BlockPool(min(wanted, tokens or wanted), own_width=own, prompt_width=prompt)
        self._growing = own if longest > own else 0  # tokens of the next block that a running rollout may need
        self._started = 0
        self.preemptions = 0

    def admit(self, running: int) -> list[PartialRollout]:
        """The waiting rollouts that start now.

        None start until an eighth of the rows is free or all waiting ones fit, because a prefill costs as much as a
        step. Where memory is short, only those start that leave a free block for each running rollout; if none is
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
        self._waiting.appendleft(running[row])
        running[row].shared.readers -= 1
        self.preemptions += 1
        return row

    def is_unused(self, shared: SharedPrompt) -> bool:
        """Whether no rollout needs the prompt or, where memory is short, no running rollout does."""
        return shared.unfinished == 0 or (self._bounded and shared.readers == 0)

    def release(self, rollout: PartialRollout) -> None:
        """Release the prompt of a finished rollout."""
        rollout.shared.unfinished -= 1
        rollout.shared.readers -= 1


def _too_little_memory(tokens: int, needed: int) -> EngineError:
    return EngineError(
        f"there is room for the keys and values of {tokens} tokens (rollout.engine.key_value_mb, or the device's free "
        f"memory), and one rollout with its prompt needs up to {needed}",
        remedy="raise it, or lower rollout.max_new_tokens",
        key="rollout.engine.key_value_mb",
        code="engine.memory",
    )
