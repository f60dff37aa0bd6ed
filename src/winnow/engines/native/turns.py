"""Running rollouts of several turns, which keep their keys and values while an environment computes.

The environment's tokens are decoded like sampled ones, one per step, in the rows of their rollouts. So a conversation
costs as many steps as a single turn of the same tokens. Only if an environment writes a long text is a conversation
read again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from winnow import seeds
from winnow.engines.base import Turns
from winnow.engines.native.decoder import Decoder
from winnow.engines.native.rows import RunningRollouts
from winnow.engines.native.scheduler import Scheduler
from winnow.engines.requests import SamplingRequest, turn_key
from winnow.engines.stopping import StopRule
from winnow.records import IntArray, Sampling
from winnow.seeds import SeedName

NEVER = np.iinfo(np.int64).max
READ = 64  # an environment's turn of more tokens is read in one pass, together with the conversation before it


class RunningTurns(RunningRollouts):
    """See `RunningRollouts`. A row is in one of three states.

    - The policy's turn is sampled; `_first` is the number of tokens before it.
    - The environment's turn is given: its tokens are in the table up to `_known`, and the row decodes them one by one.
    - The environment's answer is awaited; `_first` is the number of tokens before it. The row decodes the tokens with
      which every answer starts, and then its last token again, without effect. At the step `_due` the answer is taken:
      sampling waits for it if it is not there. So what is decoded together does not depend on an environment's speed.
    """

    def __init__(
        self, decoder: Decoder, scheduler: Scheduler, sampling: Sampling, seed: tuple[SeedName, ...], turns: Turns
    ) -> None:
        super().__init__(decoder, scheduler, sampling, seed, room=turns.max_tokens)
        self._turns, self._turn_tokens = turns, sampling.max_new_tokens
        self._steps = 0
        self._turn, self._known, self._due = np.zeros((3, scheduler.rows), dtype=np.int64)  # [R] each
        self._tables += [self._turn, self._known, self._due]

    def sample(self, rule: StopRule) -> IntArray:
        """Sample or give the next token of every row; returns the rows (ascending) whose turns have ended."""
        rows, length = np.arange(len(self)), self._length[: len(self)]
        newest, logprob = self._choose((rows, np.minimum(length, self._uniforms.shape[1] - 1)))
        given = length < self._known[: len(self)]
        sampled = np.flatnonzero(~given & (self._due[: len(self)] == NEVER))
        cells = sampled, length[sampled]
        self._tokens[cells], self._logprobs[cells] = newest[sampled], logprob[sampled]
        self._known[sampled] += 1
        self._length[sampled] += 1
        self._length[: len(self)][given] += 1
        self._steps += 1
        return sampled[self._ended(sampled, newest[sampled], rule)]

    def finish(self, ended: IntArray, request: SamplingRequest) -> None:
        """Pass on the turns of the rows that ended, and take the answers that are due."""
        for row in ended.tolist():
            self._hand_over(row, request)
            self._first[row], self._due[row] = self._length[row], self._steps + self._turns.steps
            self._give(row, self._turns.opening(int(self._tokens[row, self._length[row] - 1])))
        due = np.flatnonzero(self._due[: len(self)] <= self._steps)
        if len(due):
            request.wait()
            self._answer(due.tolist())

    def _answer(self, due: list[int]) -> None:
        """Take the answers of these rows. Rows whose rollouts have ended or are to be read again are removed."""
        removed, read, playing = [], [], []
        answers = self._turns.answers([self._rows[row].pending for row in due])
        for row, tokens in zip(due, answers, strict=True):
            if tokens is None:
                self._scheduler.release(self._rows[row])
                removed.append(row)
                continue
            self._give(row, tokens)
            self._turn[row] += 1
            self._first[row], self._due[row] = self._known[row], NEVER
            playing.append(row)
        self._draw(playing)
        for row in reversed(playing):
            if self._known[row] - self._length[row] > READ:
                self._length[row] = self._known[row]
                self._store(row)
                self._scheduler.put_back(self._rows[row])
                read.append(row)
        if removed or read:
            self._remove(np.array(sorted(removed + read)))

    def _give(self, row: int, tokens: IntArray) -> None:
        """Set the environment's tokens from `_first` on, if a turn of the policy has room after them."""
        end = self._first[row] + len(tokens)
        if end <= self._turns.max_tokens - self._turn_tokens:
            self._tokens[row, self._first[row] : end], self._logprobs[row, self._first[row] : end] = tokens, 0
            self._known[row] = end

    def _start(self, first: int) -> None:
        rows = slice(first, len(self))
        self._turn[rows] = self._first[rows] = self._known[rows] = 0
        self._due[rows] = NEVER
        self._draw(range(first, len(self)))

    def _draw(self, rows: Sequence[int]) -> None:
        """Set the random numbers of the present turns of these rows."""
        of_each = ((self._rows[row].pending, int(self._turn[row])) for row in rows)
        keys = (turn_key(self._seed, pending.prompt.id, pending.index, turn) for pending, turn in of_each)
        for row, numbers in zip(rows, seeds.uniforms(keys, self._turn_tokens), strict=True):
            turn = self._uniforms[row, self._first[row] : self._first[row] + self._turn_tokens]
            turn[:] = numbers[: len(turn)]  # less room only where the rollout ends with the turn before
