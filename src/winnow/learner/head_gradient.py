"""The gradient of one rollout's log P with respect to the output head, W = sum_t d_t h_t' [V, H], without autograd.

d_t = (onehot(y_t) - p_t) / temperature are [V] each and exist for `chunk` tokens at a time. The results are the squared
norm of W, and its rows for the tokens of the prompt and the rollout. Two methods give them, equal but for rounding:

    in pairs   sum_ij (d_i . d_j) (h_i . h_j): W is never formed. Every pair of chunks is multiplied, and one chunk of
               a pair passes through the head again, so the cost is quadratic in the number of chunks
    as matrix  W itself, in float32 or float64, summed over chunks: linear in tokens, and 4 V H bytes
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn


class Chunk(NamedTuple):
    """At most `chunk` completion tokens of one rollout."""

    hidden: Tensor  # [c, H] hidden states that predict the tokens
    targets: Tensor  # [c] the tokens
    mask: Tensor  # [c] bool, False where log P omits a token


def logit_gradients(logits: Tensor, chunk: Chunk, temperature: float) -> Tensor:
    """d log P / d logits [c, V]: (onehot - softmax) / temperature, and 0 for tokens that log P omits."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1.0:
        logits = logits / temperature
    gradients = logits.softmax(dim=-1).neg_()
    gradients[torch.arange(len(gradients), device=gradients.device), chunk.targets] += 1
    return gradients.mul_(chunk.mask.to(gradients).div_(temperature).unsqueeze(-1))


class HeadGradient(Protocol):
    """Accumulates W of one rollout from its chunks."""

    def add(self, chunk: Chunk, gradients: Tensor) -> None:
        """Add a chunk with its d log P / d logits [c, V]."""

    def result(self) -> tuple[Tensor, Tensor]:
        """|| W ||^2 in float64, and the rows [S, H] of W for the rollout's `tokens`. Call it once."""


def head_gradient(head: nn.Module, tokens: Tensor, length: int, *, chunk: int, temperature: float) -> HeadGradient:
    """The method with fewer multiplications for a rollout of `length` completion tokens in chunks of `chunk`.

    `tokens` [S] are those whose rows of W the result includes.
    """
    size, hidden = cast(Tensor, head.weight).shape
    if sums_head_gradient(length, chunk=chunk, hidden=hidden):
        return AsMatrix(tokens, size, hidden)
    return InPairs(head, tokens, temperature)


def sums_head_gradient(tokens: int, *, chunk: int, hidden: int) -> bool:
    """Whether the norm of the head's gradient, for a rollout of `tokens` completion tokens, is computed from that
    gradient, and not from inner products of all pairs of chunks.

    That is so where it takes fewer multiplications. Both counts leave out their common factor V.
    """
    chunks = -(-tokens // chunk)
    same, other = min(tokens, chunk) ** 2, chunk * (hidden + chunk)  # of a chunk with itself, and with another
    return tokens * hidden < chunks * same + chunks * (chunks - 1) // 2 * other


class InPairs:
    """Squared norm by inner products of chunk pairs."""

    def __init__(self, head: nn.Module, tokens: Tensor, temperature: float) -> None:
        self._head, self._tokens, self._temperature = head, tokens, temperature
        self._chunks, self._squares = list[Chunk](), list[Tensor]()
        self._rows: Tensor | None = None

    @torch.no_grad()
    def add(self, chunk: Chunk, gradients: Tensor) -> None:
        hidden = chunk.hidden.to(gradients)
        self._squares.append(((gradients @ gradients.T) * (hidden @ hidden.T)).sum(dtype=torch.float64))
        for other in self._chunks:
            # Each pair of different chunks occurs twice in the double sum.
            theirs = logit_gradients(self._head(other.hidden), other, self._temperature)
            self._squares.append(
                2 * ((gradients @ theirs.T) * (hidden @ other.hidden.to(theirs).T)).sum(dtype=torch.float64)
            )
            del theirs  # [chunk, V]: free it before the next chunk's logits are computed
        self._chunks.append(chunk)
        rows = gradients[:, self._tokens].T @ hidden
        self._rows = rows if self._rows is None else self._rows.add_(rows)

    def result(self) -> tuple[Tensor, Tensor]:
        assert self._rows is not None
        return torch.stack(self._squares).sum(), self._rows


class AsMatrix:
    """Squared norm of W as a matrix."""

    def __init__(self, tokens: Tensor, size: int, hidden: int) -> None:
        self._tokens, self._shape = tokens, (size, hidden)
        self._total: Tensor | None = None

    @torch.no_grad()
    def add(self, chunk: Chunk, gradients: Tensor) -> None:
        if self._total is None:
            self._total = gradients.new_zeros(self._shape)
        self._total.addmm_(gradients.T, chunk.hidden.to(gradients))

    def result(self) -> tuple[Tensor, Tensor]:
        assert self._total is not None
        rows = self._total[self._tokens]
        return self._total.square_().sum(dim=-1).sum(dtype=torch.float64), rows
