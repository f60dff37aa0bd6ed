"""Which rollouts are sampled together: prompts that rollouts share, and who waits for memory."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from winnow.engines.native.blocks import BlockPool
from winnow.engines.native.cache_size import block_width, in_blocks
from winnow.engines.requests import PendingRollout
from winnow.errors import EngineError
from winnow.records import FloatArray, IntArray, Prompt

if TYPE_CHECKING:
    from torch import Tensor


NO_TOKENS, NO_LOGPROBS = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float64)


@dataclass(slots=True)
class SharedPrompt:
    """A prompt and some of its rollouts, which read one copy of its keys and values."""

    prompt: Prompt
    unfinished: int  # rollouts that still need the prompt
    readers: int = 0  # of those, how many are running
    number: int = -1  # among the prompts in the cache, while it is there
    logits: Tensor | None = None  # [V] after the prompt


@dataclass(slots=True)
class PartialRollout:
    """A rollout that waits or runs; `tokens` and `logprobs` [L] are what it had when it was put back."""

    shared: SharedPrompt
    pending: PendingRollout
    tokens: IntArray = field(default_factory=lambda: NO_TOKENS)
    logprobs: FloatArray = field(default_factory=lambda: NO_LOGPROBS)
    started: int = -1  # the how-manyth to start


def sharing(rollouts: Sequence[PendingRollout]) -> list[PartialRollout]:
    """Every rollout with its prompt, prompts of like length together (least padding).

    A copy of a prompt has no more rollouts than a prompt gets on average: one prompt with many does not make the
    matrix of every other's queries as wide. With equal counts a prompt is held once.
    """
    by_length = sorted(rollouts, key=lambda rollout: (len(rollout.prompt.tokens), rollout.prompt_index))
    groups = [list(group) for _, group in itertools.groupby(by_length, key=lambda rollout: rollout.prompt_index)]
    each = -(-len(rollouts) // max(1, len(groups)))
    found = []
    for chunk in (group[i : i + each] for group in groups for i in range(0, len(group), each)):
        shared = SharedPrompt(chunk[0].prompt, unfinished=len(chunk))
        found += [PartialRollout(shared, pending) for pending in chunk]
    return found


class Scheduler:
    """The waiting rollouts of a request, and the blocks that they and the running ones hold."""

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
        `fixed`: in blocks of one size, whatever the request.

        Raises EngineError where such a cache does not hold a single rollout.
        """
        waiting = sharing(rollouts)
        self._waiting = deque(waiting)
        shared = list({id(rollout.shared): rollout.shared for rollout in waiting}.values())
        self.rows = min(rows, len(waiting))
        self.readers = min(self.rows, max((each.unfinished for each in shared), default=0))  # of one prompt
        prompts = sorted((len(each.prompt.tokens) for each in shared), reverse=True)
        longest_prompt = prompts[0] if prompts else 0
        own, prompt = block_width(longest, fixed=fixed), block_width(longest_prompt, fixed=fixed)
        # A prompt in use has a row that reads it, so no more of them are in use than there are rows
        in_use = sum(in_blocks(length, prompt) for length in prompts[: self.rows])
        wanted = self.rows * in_blocks(longest, own) + in_use
        if tokens is not None and (least := in_blocks(longest, own) + in_blocks(longest_prompt, prompt)) > tokens:
            raise _too_little(tokens, least)
        self._bounded = tokens is not None and tokens < wanted
        self.pool = BlockPool(min(wanted, tokens or wanted), own_width=own, prompt_width=prompt)
        self._growing = own if longest > own else 0  # tokens that a running rollout may want next
        self._started = 0
        self.put_back = 0  # rollouts that had to make room, each time counted

    def admit(self, running: int) -> list[PartialRollout]:
        """The waiting rollouts that start now: none until an eighth of the rows is free, as a prefill costs a step, and
        where memory is short, as many as there is room for, with a block left for each that runs.
        """
        rows = self.rows - running
        if not self._waiting or (rows < len(self._waiting) and 8 * rows < self.rows):
            return []
        admitted: list[PartialRollout] = []
        free, new = self.pool.free, set[int]()
        while self._waiting and len(admitted) < rows:
            rollout = self._waiting[0]
            taken = in_blocks(len(rollout.tokens) + 1, self.pool.own.width)
            if rollout.shared.number < 0 and id(rollout.shared) not in new:
                taken += in_blocks(len(rollout.shared.prompt.tokens), self.pool.prompts.width)
            if self._bounded and free - taken < self._growing * (running + len(admitted)) and running + len(admitted):
                break
            free -= taken
            new.add(id(rollout.shared))
            admitted.append(self._waiting.popleft())
        for rollout in admitted:
            rollout.shared.readers += 1
            rollout.started = self._started = self._started + 1
        return admitted

    def put_back_youngest(self, running: Sequence[PartialRollout]) -> int:
        """Which of the running rollouts makes room: it waits again, before all others."""
        row = max(range(len(running)), key=lambda row: running[row].started)
        self._waiting.appendleft(running[row])
        running[row].shared.readers -= 1
        self.put_back += 1
        return row

    def unread(self, shared: SharedPrompt) -> bool:
        """Whether a prompt is to leave the cache: nobody needs it, or nobody runs who does and memory is short."""
        return shared.unfinished == 0 or (self._bounded and shared.readers == 0)

    def release(self, rollout: PartialRollout) -> None:
        """It is finished."""
        rollout.shared.unfinished -= 1
        rollout.shared.readers -= 1


def _too_little(tokens: int, wanted: int) -> EngineError:
    return EngineError(
        f"there is room for the keys and values of {tokens} tokens (rollout.engine.key_value_mb, or what the device "
        f"leaves), and one rollout with its prompt takes up to {wanted}",
        remedy="raise it, or lower rollout.max_new_tokens",
        key="rollout.engine.key_value_mb",
        code="engine.memory",
    )
