"""The rollouts of one request while they are sampled, one row each."""

from __future__ import annotations

import numpy as np
import torch

from winnow.engines.native.decoder import Decoder
from winnow.engines.native.scheduler import Line, Tile
from winnow.engines.requests import Harvest, Slot
from winnow.engines.sampling import choose, uniforms
from winnow.engines.stopping import StopRule
from winnow.records import BoolArray, IntArray, Sampling
from winnow.seeds import Part


class Rows:
    """Living rollouts, in the first `len(rows)` rows of every table [R, C]; the tables never grow or shrink.

    When rollouts finish, the last living rows move into the gaps: a step copies as many rows as it finishes, and the
    living stay contiguous, so that the policy sees plain views. Then waiting rollouts take the rows that are free.
    At any time all rows write the same column of a ring, wherever in their text they are.
    """

    def __init__(self, decoder: Decoder, line: Line, sampling: Sampling, seed: tuple[Part, ...]) -> None:
        self._decoder, self._line, self._sampling, self._seed = decoder, line, sampling, seed
        self._columns = line.room.columns
        self._seats: list[tuple[Tile, Slot]] = []
        self._logits = torch.empty(0, 0)  # [R, V] of the next tokens
        self._time = 0  # tokens that the first rows have by now
        self._born = np.zeros(line.room.rows, dtype=np.int64)  # the time at which a row began
        self._tokens = np.zeros((line.room.rows, self._columns), dtype=np.int64)
        self._logprobs = np.zeros(self._tokens.shape, dtype=np.float64)
        self._uniforms = np.zeros(self._tokens.shape, dtype=np.float64)

    def __len__(self) -> int:
        return len(self._seats)

    def admit(self) -> bool:
        """Let waiting rollouts in, as many as have room, and read their prompts; False when nobody is left."""
        if admitted := self._line.admit(len(self)):
            rows = slice(len(self), len(self) + len(admitted))
            if opened := self._line.open(admitted):
                logits = self._decoder.read([t.prompt for t in opened], [t.place for t in opened])
                for tile, row in zip(opened, logits, strict=True):
                    tile.logits = row
            after = torch.stack([tile.logits for tile, _ in admitted if tile.logits is not None])
            self._logits = torch.cat([self._logits, after]) if self._seats else after
            self._seats += admitted
            self._born[rows] = self._time
            drawn = uniforms(self._seed, [slot for _, slot in admitted], self._sampling.max_new_tokens)
            numbers = np.arange(rows.start, rows.stop)
            self._uniforms[numbers[:, None], self._written(numbers, drawn.shape[1])] = drawn
            self._decoder.start(rows, torch.tensor([len(slot.prompt.tokens) for _, slot in admitted]))
            self._seat()
        return len(self) > 0

    def draw(self, rule: StopRule) -> IntArray:
        """Choose the next token of every living row; the rows (ascending) that it ends."""
        living, column = len(self), self._time % self._columns
        uniform = torch.from_numpy(self._uniforms[:living, column])
        token, logprob = choose(self._logits, uniform, self._sampling)
        self._decoder.take(token)
        self._tokens[:living, column] = token.numpy(force=True)
        self._logprobs[:living, column] = logprob.numpy(force=True)
        self._time += 1
        return np.flatnonzero(self._over(self._tokens[:living, column], rule))

    def retire(self, finished: IntArray, harvest: Harvest) -> None:
        """Hand finished rows to the harvest, and let the last living ones take their places."""
        if not len(finished):
            return
        lengths = self._time - self._born[finished]
        places = finished[:, None], self._written(finished, lengths.max())
        found = zip(finished.tolist(), lengths.tolist(), self._tokens[places], self._logprobs[places], strict=True)
        for row, length, tokens, logprobs in found:
            tile, slot = self._seats[row]
            harvest.add(slot, tokens[:length], logprobs[:length])
            self._line.leave(tile)
        left = len(self) - len(finished)
        gaps = finished[finished < left]
        movers = np.setdiff1d(np.arange(left, len(self)), finished, assume_unique=True)
        for gap, mover in zip(gaps, movers, strict=True):
            self._seats[gap] = self._seats[mover]
        del self._seats[left:]
        for table in (self._born, self._tokens, self._logprobs, self._uniforms):
            table[gaps] = table[movers]
        self._decoder.move(torch.from_numpy(movers), torch.from_numpy(gaps))
        self._seat()

    def advance(self) -> None:
        """Feed the newest tokens to the policy, which answers with the next logits."""
        if self._seats:
            self._logits = self._decoder.advance(len(self), self._time)

    def _over(self, newest: IntArray, rule: StopRule) -> BoolArray:
        """[R] whether a row's newest token ends it."""
        longest = self._born[: len(self)] + self._sampling.max_new_tokens == self._time
        over: BoolArray = longest | rule.stops[newest]
        for row in np.flatnonzero(rule.watch[newest] & ~over).tolist():
            over[row] = rule.ends(self._tokens[row, self._written(row, self._time - self._born[row])[0]])
        return over

    def _written(self, rows: int | IntArray, length: int) -> IntArray:
        """[rows, length] the columns of rows' first tokens."""
        columns: IntArray = (np.atleast_1d(self._born[rows])[:, None] + np.arange(length)) % self._columns
        return columns

    def _seat(self) -> None:
        self._decoder.seat(np.array([tile.place for tile, _ in self._seats], dtype=np.int64))
