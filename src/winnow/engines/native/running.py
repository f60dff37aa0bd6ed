"""The running rollouts of one request, one row each."""

from __future__ import annotations

import numpy as np
import torch

from winnow.engines.native.decoder import Decoder
from winnow.engines.native.scheduler import PromptBlock, Scheduler
from winnow.engines.requests import PendingRollout, SamplingRequest
from winnow.engines.sampling import choose, uniforms
from winnow.engines.stopping import StopRule
from winnow.records import BoolArray, IntArray, Sampling
from winnow.seeds import SeedName


class RunningRollouts:
    """Rollouts that are being sampled, in the first `len(self)` rows of every table [R, C]; the tables keep their size.

    When rollouts finish, the last running rows move into the gaps: a decoding step copies as many rows as it finishes,
    and running rows stay contiguous, so that the policy gets plain views. Then waiting rollouts take the free rows.
    All rows write the same column of a ring buffer at the same time, wherever in its text each rollout is.
    """

    def __init__(self, decoder: Decoder, scheduler: Scheduler, sampling: Sampling, seed: tuple[SeedName, ...]) -> None:
        self._decoder, self._scheduler, self._sampling, self._seed = decoder, scheduler, sampling, seed
        rows, self._columns = scheduler.size.rows, scheduler.size.columns
        self._rows: list[tuple[PromptBlock, PendingRollout]] = []
        self._logits = torch.empty(0, 0)  # [R, V] of the next tokens
        self._written = 0  # columns since the request began, each turn of the ring counted
        self._first = np.zeros(rows, dtype=np.int64)  # [R] `_written` when the row's rollout began
        self._tokens = np.zeros((rows, self._columns), dtype=np.int64)
        self._logprobs = np.zeros(self._tokens.shape, dtype=np.float64)
        self._uniforms = np.zeros(self._tokens.shape, dtype=np.float64)

    def __len__(self) -> int:
        return len(self._rows)

    def admit(self) -> bool:
        """Start waiting rollouts, as many as there are rows for, and prefill their prompts; False once none is left."""
        if admitted := self._scheduler.admit(len(self)):
            rows = slice(len(self), len(self) + len(admitted))
            if new := self._scheduler.assign_blocks(admitted):
                logits = self._decoder.prefill([block.prompt for block in new], [block.number for block in new])
                for block, row in zip(new, logits, strict=True):
                    block.logits = row
            after = torch.stack([block.logits for block, _ in admitted if block.logits is not None])
            self._logits = torch.cat([self._logits, after]) if self._rows else after
            self._rows += admitted
            self._first[rows] = self._written
            drawn = uniforms(self._seed, [rollout for _, rollout in admitted], self._sampling.max_new_tokens)
            numbers = np.arange(rows.start, rows.stop)
            self._uniforms[numbers[:, None], self._columns_of(numbers, drawn.shape[1])] = drawn
            lengths = torch.tensor([len(rollout.prompt.tokens) for _, rollout in admitted])
            self._decoder.begin_rows(rows, lengths)
            self._set_block_table()
        return len(self) > 0

    def sample(self, rule: StopRule) -> IntArray:
        """Choose the next token of every running row; the rows (ascending) whose rollouts it ends."""
        running, column = len(self), self._written % self._columns
        uniform = torch.from_numpy(self._uniforms[:running, column])
        token, logprob = choose(self._logits, uniform, self._sampling)
        self._decoder.append(token)
        self._tokens[:running, column] = token.numpy(force=True)
        self._logprobs[:running, column] = logprob.numpy(force=True)
        self._written += 1
        return np.flatnonzero(self._ended(self._tokens[:running, column], rule))

    def finish(self, ended: IntArray, request: SamplingRequest) -> None:
        """Finish the rollouts of the rows that ended, and move the last running rows into the gaps."""
        if not len(ended):
            return
        lengths = self._written - self._first[ended]
        cells = ended[:, None], self._columns_of(ended, lengths.max())
        found = zip(ended.tolist(), lengths.tolist(), self._tokens[cells], self._logprobs[cells], strict=True)
        for row, length, tokens, logprobs in found:
            block, rollout = self._rows[row]
            request.finish(rollout, tokens[:length], logprobs[:length])
            self._scheduler.release(block)
        left = len(self) - len(ended)
        gaps = ended[ended < left]
        moved = np.setdiff1d(np.arange(left, len(self)), ended, assume_unique=True)
        for gap, source in zip(gaps, moved, strict=True):
            self._rows[gap] = self._rows[source]
        del self._rows[left:]
        for table in (self._first, self._tokens, self._logprobs, self._uniforms):
            table[gaps] = table[moved]
        self._decoder.move(torch.from_numpy(moved), torch.from_numpy(gaps))
        self._set_block_table()

    def decode(self) -> None:
        """One forward pass over the newest tokens, which gives the logits of the next."""
        if self._rows:
            self._logits = self._decoder.decode(len(self), self._written)

    def _ended(self, newest: IntArray, rule: StopRule) -> BoolArray:
        """[R] whether a row's newest token ends its rollout."""
        longest = self._first[: len(self)] + self._sampling.max_new_tokens == self._written
        ended: BoolArray = longest | rule.stops[newest]
        for row in np.flatnonzero(rule.watch[newest] & ~ended).tolist():

            def last(count: int, row: int = row) -> IntArray:
                newest: IntArray = self._tokens[row, np.arange(self._written - count, self._written) % self._columns]
                return newest

            ended[row] = rule.ends(int(self._written - self._first[row]), last)
        return ended

    def _columns_of(self, rows: int | IntArray, length: int) -> IntArray:
        """[rows, length] the columns of the first `length` tokens of rows."""
        columns: IntArray = (np.atleast_1d(self._first[rows])[:, None] + np.arange(length)) % self._columns
        return columns

    def _set_block_table(self) -> None:
        self._decoder.set_block_table(np.array([block.number for block, _ in self._rows], dtype=np.int64))
