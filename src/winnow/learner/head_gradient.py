"""The gradient of one rollout's log P with respect to the output head, W = sum_t d_t h_t' [V, H], without autograd.

d_t = (onehot(y_t) - p_t) / temperature are [V] each and exist for `chunk` tokens at a time. What is asked of W is its
squared norm, and its rows for the tokens of the prompt and the rollout. There are two ways, equal but for rounding:

    in pairs   sum_ij (d_i . d_j) (h_i . h_j): W is never made, and any two chunks meet, one of them through the head
               once more, so what it takes grows with the square of the number of chunks
    as matrix  W itself, in float32 at least, the chunks' shares added up: linear in tokens, and 4 V H bytes
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from winnow.memory.footprint import sums_head_gradient


class Chunk(NamedTuple):
    """Of one rollout, at most `chunk` completion tokens."""

    hidden: Tensor  # [c, H] what predicts them
    targets: Tensor  # [c] they themselves
    mask: Tensor  # [c] bool, False where log P leaves a token out


def logit_gradients(logits: Tensor, chunk: Chunk, temperature: float) -> Tensor:
    """d log P / d logits [c, V]: (onehot - softmax) / temperature, and 0 for tokens that log P leaves out."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1.0:
        logits = logits / temperature
    gradients = logits.softmax(dim=-1).neg_()
    gradients[torch.arange(len(gradients), device=gradients.device), chunk.targets] += 1
    return gradients.mul_(chunk.mask.to(gradients).div_(temperature).unsqueeze(-1))


class HeadGradient(Protocol):
    """W of one rollout, from its chunks."""

    def add(self, chunk: Chunk, gradients: Tensor) -> None:
        """One more chunk, with its d log P / d logits [c, V]."""

    def found(self) -> tuple[Tensor, Tensor]:
        """|| W ||^2 in float64, and the rows [S, H] of W that belong to the rollout's `tokens`. Called once."""


def head_gradient(head: nn.Module, tokens: Tensor, length: int, *, chunk: int, temperature: float) -> HeadGradient:
    """The way that takes fewer multiplications, of a rollout of `length` completion tokens in chunks of `chunk`. Rows
    are found for `tokens` [S].
    """
    size, hidden = cast(Tensor, head.weight).shape
    if sums_head_gradient(length, chunk=chunk, hidden=hidden):
        return AsMatrix(tokens, size, hidden)
    return InPairs(head, tokens, temperature)


class InPairs:
    """By inner products."""

    def __init__(self, head: nn.Module, tokens: Tensor, temperature: float) -> None:
        self._head, self._tokens, self._temperature = head, tokens, temperature
        self._chunks, self._squares = list[Chunk](), list[Tensor]()
        self._rows: Tensor | None = None

    @torch.no_grad()
    def add(self, chunk: Chunk, gradients: Tensor) -> None:
        own = chunk.hidden.to(gradients)
        self._squares.append(((gradients @ gradients.T) * (own @ own.T)).sum(dtype=torch.float64))
        for other in self._chunks:
            theirs = logit_gradients(self._head(other.hidden), other, self._temperature)
            self._squares.append(
                2 * ((gradients @ theirs.T) * (own @ other.hidden.to(theirs).T)).sum(dtype=torch.float64)
            )
        self._chunks.append(chunk)
        rows = gradients[:, self._tokens].T @ own
        self._rows = rows if self._rows is None else self._rows.add_(rows)

    def found(self) -> tuple[Tensor, Tensor]:
        assert self._rows is not None
        return torch.stack(self._squares).sum(), self._rows


class AsMatrix:
    """As a matrix."""

    def __init__(self, tokens: Tensor, size: int, hidden: int) -> None:
        self._tokens, self._shape = tokens, (size, hidden)
        self._total: Tensor | None = None

    @torch.no_grad()
    def add(self, chunk: Chunk, gradients: Tensor) -> None:
        if self._total is None:
            self._total = gradients.new_zeros(self._shape)
        self._total.addmm_(gradients.T, chunk.hidden.to(gradients))

    def found(self) -> tuple[Tensor, Tensor]:
        assert self._total is not None
        rows = self._total[self._tokens]
        return self._total.square_().sum(dim=-1).sum(dtype=torch.float64), rows
