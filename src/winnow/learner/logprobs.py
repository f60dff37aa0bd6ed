"""Log-probabilities of given tokens from hidden states, without the logits of a whole micro-batch in memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

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
    The softmax is taken in float32, or in float64 for float64 logits.
    """
    compute = functools.partial(_chunk, head=head, temperature=temperature, with_entropy=with_entropy)
    weights = _trained(head)
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
        weights = _trained(ctx.compute.keywords["head"])
        above, sums = torch.empty_like(hidden), list[Tensor]()
        pieces = zip(*(torch.split(t, ctx.chunk) for t in (above, hidden, targets, *gradients)), strict=True)
        for out, read, tokens, *given in reversed(list(pieces)):  # autograd's order of summation
            with torch.enable_grad():
                read = read.detach().requires_grad_()
                outputs = ctx.compute(read, tokens)
            gradient, *shares = torch.autograd.grad(outputs, (read, *weights), given)
            del outputs  # frees [chunk, V] before the next chunk
            out.copy_(gradient)
            sums = [s.add_(share) for s, share in zip(sums, shares, strict=True)] if sums else list(map(_exact, shares))
        rounded = (total.to(weight.dtype) for total, weight in zip(sums, weights, strict=True))
        return None, None, above, None, *rounded


def _trained(head: nn.Module) -> list[nn.Parameter]:
    return [p for p in head.parameters() if p.requires_grad]


def _exact(numbers: Tensor) -> Tensor:
    """The numbers in float32, or in float64 where they are float64."""
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))


def _chunk(hidden: Tensor, targets: Tensor, *, head: nn.Module, temperature: float, with_entropy: bool) -> _Outputs:
    logits = _exact(head(hidden))
    if temperature != 1.0:  # dividing by 1 would only copy [chunk, V]
        logits = logits / temperature
    if not with_entropy:
        return (-functional.cross_entropy(logits, targets, reduction="none"),)
    logprobs = logits.log_softmax(dim=-1)
    entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropy
