"""The running rollouts of one request, one row each."""

from __future__ import annotations

import numpy as np
import torch

from winnow.engines.native.decoder import Decoder, Text
from winnow.engines.native.scheduler import PartialRollout, Scheduler, SharedPrompt, fill_gaps
from winnow.engines.requests import SamplingRequest
from winnow.engines.sampling import choose, to_host, uniforms
from winnow.engines.stopping import StopRule
from winnow.models.device import to_device
from winnow.records import BoolArray, FloatArray, IntArray, Sampling
from winnow.seeds import SeedName


class RunningRollouts:
    """The rollouts being sampled, in the first `len(self)` rows of every table [R, C]; the tables keep their size.

    When rollouts finish, the last running rows move into the gaps, so that running rows stay contiguous. Only the last
    blocks of the cache are copied, into the blocks of finished rollouts. Then waiting rollouts take the free rows.
    If memory is short, the youngest rollout is preempted for older ones.
    """

    def __init__(
        self,
        decoder: Decoder,
        scheduler: Scheduler,
        sampling: Sampling,
        seed: tuple[SeedName, ...],
        *,
        room: int | None = None,
    ) -> None:
        """A rollout has room for `room` tokens (None: `max_new_tokens`)."""
        self._decoder, self._scheduler, self._sampling, self._seed = decoder, scheduler, sampling, seed
        self._rows: list[PartialRollout] = []
        self._prompts: list[SharedPrompt] = []  # in the cache
        self._logits = torch.empty(0, 0)  # [R, V] of the next tokens
        self._length = np.zeros(scheduler.rows, dtype=np.int64)  # [R] tokens of each rollout so far
        self._first = np.zeros(scheduler.rows, dtype=np.int64)  # [R] those before the present turn; 0 without turns
        self._tokens = np.zeros((scheduler.rows, room or sampling.max_new_tokens), dtype=np.int64)
        self._logprobs = np.zeros(self._tokens.shape, dtype=np.float64)
        self._uniforms = np.zeros(self._tokens.shape, dtype=np.float64)
        self._prompt_length = np.zeros(scheduler.rows, dtype=np.int64)  # [R] tokens of each row's prompt
        self._tables = [self._length, self._first, self._tokens, self._logprobs, self._uniforms, self._prompt_length]

    def __len__(self) -> int:
        return len(self._rows)

    def admit(self) -> bool:
        """Start the rollouts that the scheduler admits, and read their prompts; False once no rollout is running."""
        if admitted := self._scheduler.admit(len(self)):
            first, rows = len(self), slice(len(self), len(self) + len(admitted))
            after = self._read(admitted, first)
            self._logits = torch.cat([self._logits, after]) if self._rows else after
            self._rows += admitted
            self._length[rows] = 0
            self._start(first)
            for row, rollout in enumerate(admitted, start=first):
                for table, line in zip(self._tables, rollout.kept, strict=False):  # of a new rollout, nothing is kept
                    table[row] = line
            self._prompt_length[rows] = [len(rollout.shared.prompt.tokens) for rollout in admitted]
            self._decoder.set_prompts([rollout.shared.number for rollout in self._rows])
        return len(self) > 0

    def sample(self, rule: StopRule) -> IntArray:
        """Sample the next token of every running row; returns the rows (ascending) whose rollouts have ended."""
        cells = np.arange(len(self)), self._length[: len(self)]
        newest, logprob = self._choose(cells)
        self._tokens[cells], self._logprobs[cells] = newest, logprob
        self._length[: len(self)] += 1
        return np.flatnonzero(self._ended(cells[0], newest, rule))

    def finish(self, ended: IntArray, request: SamplingRequest) -> None:
        """Finish the rollouts of the rows that ended."""
        if not len(ended):
            return
        for row in ended.tolist():
            self._hand_over(row, request)
            self._scheduler.release(self._rows[row])
        self._remove(ended)

    def decode(self) -> None:
        """Compute the logits of the next tokens by one forward pass over the newest."""
        if not self._rows:
            return
        self._make_room()
        rows = np.arange(len(self))
        written = self._length[: len(self)] - 1  # tokens of each row before the newest
        positions = self._prompt_length[: len(self)] + written
        self._logits = self._decoder.decode(self._tokens[rows, written], positions, written)

    def _start(self, first: int) -> None:
        """Set what the rollouts in the rows from `first` on start with: their random numbers."""
        pending = [rollout.pending for rollout in self._rows[first:]]
        self._uniforms[first : len(self)] = uniforms(self._seed, pending, self._sampling.max_new_tokens)

    def _hand_over(self, row: int, request: SamplingRequest) -> None:
        """Give the present turn of a row to the request."""
        turn = slice(self._first[row], self._length[row])
        request.finish(self._rows[row].pending, self._tokens[row, turn].copy(), self._logprobs[row, turn].copy())

    def _choose(self, cells: tuple[IntArray, IntArray]) -> tuple[IntArray, FloatArray]:
        """The next token of every row and its log-prob, by the random numbers at these places of the tables."""
        uniform = to_device(self._uniforms[cells], self._logits.device)
        chosen = choose(self._logits, uniform, self._sampling)
        return to_host(*chosen)  # the only wait for the device per token: the host decides what ends

    def _read(self, admitted: list[PartialRollout], first: int) -> torch.Tensor:
        """Allocate blocks for prompts that are not in the cache and for preempted rollouts, and read them; returns the
        logits [A, V] after all admitted rollouts.

        A prompt that occurs several times is read once.
        """
        new = list({id(each.shared): each.shared for each in admitted if each.shared.number < 0}.values())
        recurring: dict[int, list[SharedPrompt]] = {}
        lengths = np.array([len(shared.prompt.tokens) for shared in new], dtype=np.int64)
        for shared, number in zip(new, self._decoder.cache.add_prompts(lengths).tolist(), strict=True):
            shared.number = number
            recurring.setdefault(id(shared.prompt), []).append(shared)
        self._prompts += new
        self._decoder.cache.add_rows(np.array([len(rollout.tokens) for rollout in admitted]))
        texts = [
            Text(same[0].prompt.tokens, prompts=tuple(shared.number for shared in same)) for same in recurring.values()
        ]
        again = [row for row, rollout in enumerate(admitted) if len(rollout.tokens)]
        for row in again:
            prompt = admitted[row].shared.prompt.tokens
            tokens = np.concatenate([prompt, admitted[row].tokens])
            texts.append(Text(tokens, row=first + row, first=len(prompt)))
        if texts:
            logits = self._decoder.read(texts)
            for same, row in zip(recurring.values(), logits, strict=False):
                for shared in same:
                    shared.logits = row
            of_row = dict(zip(again, logits[len(recurring) :], strict=True))
        else:
            of_row = {}
        after = [of_row.get(row, rollout.shared.logits) for row, rollout in enumerate(admitted)]
        return torch.stack([row for row in after if row is not None])

    def _make_room(self) -> None:
        """Allocate a block for every row whose newest token needs one; without room, preempt the youngest rollouts."""
        pool = self._scheduler.pool
        while len(full := np.flatnonzero(self._length[: len(self)] > pool.own.held[: len(self)] * pool.own.width)):
            if len(full) * pool.own.width <= pool.free:
                self._decoder.cache.extend(full)
                return
            row = self._scheduler.preempt_youngest(self._rows)
            self._store(row)
            self._remove(np.array([row]))

    def _store(self, row: int) -> None:
        """Keep what the tables have of a row in its rollout, whose tokens will be read again."""
        rollout = self._rows[row]
        rollout.tokens = self._tokens[row, : self._length[row]].copy()
        rollout.kept = [table[row].copy() for table in self._tables]

    def _remove(self, rows: IntArray) -> None:
        """Remove rollouts: the last rows move into the gaps, and unused prompts are evicted."""
        prompts = {id(shared): shared for shared in (self._rows[row].shared for row in rows.tolist())}
        self._decoder.cache.remove_rows(rows)
        source, target = fill_gaps(rows, len(self))
        for table in self._tables:
            table[target] = table[source]
        for before, now in zip(source.tolist(), target.tolist(), strict=True):
            self._rows[now] = self._rows[before]
        del self._rows[len(self._rows) - len(rows) :]
        if unused := [shared for shared in prompts.values() if self._scheduler.is_unused(shared)]:
            self._evict(unused)
        self._decoder.set_prompts([rollout.shared.number for rollout in self._rows])

    def _evict(self, unused: list[SharedPrompt]) -> None:
        """Evict prompts from the cache; the last ones take their numbers."""
        numbers = np.array(sorted(shared.number for shared in unused))
        self._decoder.cache.remove_prompts(numbers)
        for shared in unused:
            shared.number, shared.logits = -1, None
        source, target = fill_gaps(numbers, len(self._prompts))
        for before, now in zip(source.tolist(), target.tolist(), strict=True):
            self._prompts[now] = self._prompts[before]
            self._prompts[now].number = now
        del self._prompts[len(self._prompts) - len(unused) :]

    def _ended(self, rows: IntArray, newest: IntArray, rule: StopRule) -> BoolArray:
        """[S] whether the newest token of each of these rows [S] ends its turn."""
        first, length = self._first[rows], self._length[rows]
        ended: BoolArray = (length - first == self._sampling.max_new_tokens) | rule.stops[newest]
        for place in np.flatnonzero(rule.watch[newest] & ~ended).tolist():
            ended[place] = rule.ends(self._tokens[rows[place], first[place] : length[place]])
        return ended
