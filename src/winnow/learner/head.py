"""The output head in chunks of tokens: log-probs and gradients without the logits [T, V] of a whole micro-batch.

The gradient of one rollout's log P with respect to the head is W = sum_t d_t h_t' [V, H], without autograd. d_t =
(onehot(y_t) - p_t) / temperature are [V] each and exist for `chunk` tokens at a time. The results are the squared norm
of W, and its rows for the tokens of the prompt and the rollout. Two methods give them, equal but for rounding:

    in pairs   sum_ij (d_i . d_j) (h_i . h_j): W is never formed. Every pair of chunks is multiplied, and one chunk of
               a pair passes through the head again, so the cost is quadratic in the number of chunks
    as matrix  W itself, in float32 or float64, summed over chunks: linear in tokens, and 4 V H bytes
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from winnow.learner import head_on_cpu
from winnow.learner.head_on_cpu import exact, scaled, trained
from winnow.memory import footprint

CHUNK_TOKENS = 4096  # maximum number of tokens whose logits exist at once
CHUNK_LOGITS = 2**26  # maximum number of logits at once: 441 tokens of a vocabulary of 151,936

_Outputs = tuple[Tensor, ...]  # log-probs, and the entropy where it is requested


def default_chunk_tokens(model: nn.Module) -> int:
    """Number of tokens whose logits exist at once, when log-probs or gradient norms are computed."""
    return max(1, min(CHUNK_TOKENS, CHUNK_LOGITS // footprint.head(model).shape[0]))


def token_logprobs(
    hidden: Tensor, head: nn.Module, targets: Tensor, *, temperature: float, chunk: int, with_entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """log p of `targets` [T] under softmax(head(`hidden` [T, H]) / temperature), and on request the entropy [T].

    Logits are computed for `chunk` tokens at a time, and again in backward, so no [T, V] tensor exists for T > `chunk`.
    The softmax is taken in float32, or in float64 for float64 logits. In 16 bits on a CPU, head_on_cpu.py computes
    the log-probs without entropy.
    """
    if not with_entropy and head_on_cpu.computes(head, hidden):
        head = cast(nn.Linear, head)
        return head_on_cpu.token_logprobs(hidden, head, targets, temperature=temperature, chunk=chunk), None
    compute = functools.partial(_chunk, head=head, temperature=temperature, with_entropy=with_entropy)
    weights = trained(head)
    logprobs, *entropy = _InChunks.apply(compute, chunk, hidden, targets, *weights)  # type: ignore[no-untyped-call]
    return logprobs, *(entropy or [None])


class _InChunks(torch.autograd.Function):
    """Run `compute` chunk by chunk, and again in backward.

    The head's gradients are summed over chunks in float32 or float64. Autograd would round the sum to the weight's
    precision after every chunk.
    """

    @staticmethod
    def forward(
        ctx: Any, compute: Callable[..., _Outputs], chunk: int, hidden: Tensor, targets: Tensor, *weights: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.compute, ctx.chunk = compute, chunk
        ctx.save_for_backward(hidden, targets)
        pieces = [compute(*piece) for piece in zip(*(torch.split(t, chunk) for t in (hidden, targets)), strict=True)]
        return tuple(map(torch.cat, zip(*pieces, strict=True)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, targets = ctx.saved_tensors
        weights = trained(ctx.compute.keywords["head"])
        above, sums = torch.empty_like(hidden), list[Tensor]()
        pieces = zip(*(torch.split(t, ctx.chunk) for t in (above, hidden, targets, *gradients)), strict=True)
        for out, read, tokens, *given in reversed(list(pieces)):  # autograd's order of summation
            with torch.enable_grad():
                read = read.detach().requires_grad_()
                outputs = ctx.compute(read, tokens)
            gradient, *shares = torch.autograd.grad(outputs, (read, *weights), given)
            del outputs  # frees [chunk, V] before the next chunk
            out.copy_(gradient)
            sums = [s.add_(share) for s, share in zip(sums, shares, strict=True)] if sums else list(map(exact, shares))
            del shares  # [V, H], which the next chunk would make once more beside them
        rounded = (total.to(weight.dtype) for total, weight in zip(sums, weights, strict=True))
        return None, None, above, None, *rounded


def _chunk(hidden: Tensor, targets: Tensor, *, head: nn.Module, temperature: float, with_entropy: bool) -> _Outputs:
    # Without hooks: they cannot follow a module inside an autograd function
    logits = scaled(head.forward(hidden), temperature)
    if not with_entropy:
        return (-functional.cross_entropy(logits, targets, reduction="none"),)
    logprobs = logits.log_softmax(dim=-1)
    entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropy


class Chunk(NamedTuple):
    """At most `chunk` completion tokens of one rollout."""

    hidden: Tensor  # [c, H] hidden states that predict the tokens
    targets: Tensor  # [c] the tokens
    mask: Tensor  # [c] bool, False where log P omits a token


def logit_gradients(logits: Tensor, chunk: Chunk, temperature: float) -> Tensor:
    """d log P / d logits [c, V]: (onehot - softmax) / temperature, and 0 for tokens that log P omits."""
    gradients = scaled(logits, temperature).softmax(dim=-1).neg_()
    gradients[torch.arange(len(gradients), device=gradients.device), chunk.targets] += 1
    return gradients.mul_(chunk.mask.to(gradients).div_(temperature).unsqueeze(-1))


def sums_head_gradient(tokens: int, *, chunk: int, hidden: int) -> bool:
    """Whether the norm of the head's gradient, for a rollout of `tokens` completion tokens, is computed from that
    gradient, and not from inner products of all pairs of chunks.

    That is so where it takes fewer multiplications. Both counts leave out their common factor V.
    """
    chunks = -(-tokens // chunk)
    same, other = min(tokens, chunk) ** 2, chunk * (hidden + chunk)  # of a chunk with itself, and with another
    return tokens * hidden < chunks * same + chunks * (chunks - 1) // 2 * other


class InPairs:
    """|| W ||^2 of one rollout by inner products of chunk pairs."""

    def __init__(self, head: nn.Module, tokens: Tensor, temperature: float) -> None:
        self._head, self._tokens, self._temperature = head, tokens, temperature
        self._chunks, self._squares = list[Chunk](), list[Tensor]()
        self._rows: Tensor | None = None

    @torch.no_grad()
    def add(self, chunk: Chunk, gradients: Tensor) -> None:
        """Add a chunk with its d log P / d logits [c, V]."""
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
        """|| W ||^2 in float64, and the rows [S, H] of W for the rollout's `tokens`. Call it once."""
        assert self._rows is not None
        return torch.stack(self._squares).sum(), self._rows


class AsMatrix:
    """|| W ||^2 of one rollout from W as a matrix."""

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


HeadGradient = InPairs | AsMatrix  # accumulates W of one rollout from its chunks


def head_gradient(head: nn.Module, tokens: Tensor, length: int, *, chunk: int, temperature: float) -> HeadGradient:
    """The method with fewer multiplications for a rollout of `length` completion tokens in chunks of `chunk`.

    `tokens` [S] are those whose rows of W the result includes.
    """
    size, hidden = cast(Tensor, head.weight).shape
    if sums_head_gradient(length, chunk=chunk, hidden=hidden):
        return AsMatrix(tokens, size, hidden)
    return InPairs(head, tokens, temperature)
