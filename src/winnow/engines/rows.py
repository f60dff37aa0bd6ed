"""The rollouts of one wave while they are being sampled, one row each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from winnow.engines.batching import left_pad
from winnow.engines.harvest import Harvest, Slot
from winnow.engines.key_values import KeyValues
from winnow.engines.sampling import uniforms
from winnow.records import Sampling
from winnow.seeds import Part

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Rows:
    """Living rollouts, in the first `len(rows)` rows of every table [R, ...]; the tables never shrink.

    When rollouts finish, the last living rows move into the gaps: a step copies as many rows as it finishes, and the
    living stay contiguous, so that the policy sees plain views.
    """

    def __init__(self, model: PreTrainedModel, wave: list[Slot], sampling: Sampling, seed: tuple[Part, ...]) -> None:
        """Read every prompt of the wave once, and share what was read among its rollouts."""
        columns, device = sampling.max_new_tokens, model.device
        prompts = {slot.place: slot.prompt for slot in wave}
        tokens, real = left_pad(list(prompts.values()), pad=0, device=device)
        row_of = {place: row for row, place in enumerate(prompts)}
        owner = torch.tensor([row_of[slot.place] for slot in wave], device=device)
        read = _read(model, tokens, real)
        self._model = model
        self._slots = list(wave)
        self._cache = KeyValues(read.past_key_values, owner, tokens.shape[1] + columns)
        self._mask = _additive(real, columns, model.dtype)[owner]
        self._lengths = real.sum(dim=-1)[owner]
        self._uniforms = torch.from_numpy(uniforms(seed, wave, columns)).to(device)
        self._tokens = torch.zeros(len(wave), columns, dtype=torch.int64, device=device)
        self._logprobs = torch.zeros(len(wave), columns, dtype=torch.float64, device=device)
        self.logits: Tensor = read.logits[:, -1][owner]  # [R, V] of the next token
        self.column = 0  # how many tokens every living rollout has

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def uniforms(self) -> Tensor:
        """[R] the numbers that choose the next token."""
        return self._uniforms[: len(self), self.column]

    def append(self, token: Tensor, logprob: Tensor) -> None:
        """Write the next token [R] and its log-prob [R]."""
        self._tokens[: len(self), self.column] = token
        self._logprobs[: len(self), self.column] = logprob
        self.column += 1

    def tokens(self, row: int) -> Tensor:
        """[L] what a rollout has so far."""
        return self._tokens[row, : self.column]

    def retire(self, finished: list[int], harvest: Harvest) -> None:
        """Hand finished rows (ascending) to the harvest, and let the last living ones take their places."""
        for row in finished:
            logprobs = self._logprobs[row, : self.column]
            harvest.add(
                self._slots[row], self.tokens(row).clone().numpy(force=True), logprobs.clone().numpy(force=True)
            )
        left = len(self) - len(finished)
        gaps = [row for row in finished if row < left]
        movers = sorted(set(range(left, len(self))).difference(finished))
        for gap, mover in zip(gaps, movers, strict=True):
            self._slots[gap] = self._slots[mover]
        del self._slots[left:]
        target, source = torch.tensor([gaps, movers], dtype=torch.int64, device=self._tokens.device)
        for table in (self._tokens, self._logprobs, self._uniforms, self._mask, self._lengths):
            table[target] = table[source]
        self._cache.retain(left, source, target)

    def advance(self) -> None:
        """Feed the newest tokens to the policy, which answers with the next logits."""
        living = len(self)
        self.logits = self._model(
            input_ids=self._tokens[:living, self.column - 1, None],
            attention_mask=self._mask[:living, None, None, : self._cache.filled + 1],
            position_ids=self._lengths[:living, None] + (self.column - 1),
            past_key_values=self._cache,
            use_cache=True,
        ).logits[:, -1]
        self._cache.filled += 1


def _read(model: PreTrainedModel, tokens: Tensor, real: Tensor) -> Any:
    """The logits after left-padded prompts [G, P], and their keys and values."""
    positions = (real.cumsum(dim=-1) - 1).clamp_(min=0)
    return model(input_ids=tokens, attention_mask=real, position_ids=positions, use_cache=True, logits_to_keep=1)


def _additive(real: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
    """[G, P + columns], 0 where attention may look and -inf at padding: what every kernel with a mask understands."""
    mask = torch.zeros(len(real), real.shape[1] + columns, dtype=dtype, device=real.device)
    mask[:, : real.shape[1]].masked_fill_(real == 0, -torch.inf)
    return mask
