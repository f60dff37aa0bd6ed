"""Log-probabilities of given tokens from hidden states, without the logits of the whole micro-batch in memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

_Found = tuple[Tensor, ...]  # log-probs, and the entropy where it is asked for


def token_logprobs(
    hidden: Tensor, head: nn.Module, targets: Tensor, *, temperature: float, chunk: int, with_entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """log p of `targets` [T] under softmax(head(`hidden` [T, H]) / temperature), and on request the entropy [T].

    Works through `chunk` tokens at a time; backward computes each chunk's logits again, so no more than [chunk, V]
    exists at once. The softmax is taken in float32, in float64 for float64 logits.
    """
    compute = functools.partial(_chunk, head=head, temperature=temperature, with_entropy=with_entropy)
    weights = _trained(head)
    logprobs, *entropy = _InChunks.apply(compute, chunk, hidden, targets, *weights)  # type: ignore[no-untyped-call]
    return logprobs, *(entropy or [None])


class _InChunks(torch.autograd.Function):
    """`compute` chunk by chunk, and again in backward. The gradients that the chunks give the head are summed in
    float32 at least: autograd would round their sum to the weight's own precision after every chunk.
    """

    @staticmethod
    def forward(
        ctx: Any, compute: Callable[..., _Found], chunk: int, hidden: Tensor, targets: Tensor, *weights: Tensor
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
        for out, read, tokens, *given in reversed(list(pieces)):  # in autograd's order
            with torch.enable_grad():
                read = read.detach().requires_grad_()
                found = ctx.compute(read, tokens)
            gradient, *shares = torch.autograd.grad(found, (read, *weights), given)
            del found
            out.copy_(gradient)
            sums = [s.add_(share) for s, share in zip(sums, shares, strict=True)] if sums else list(map(_exact, shares))
        rounded = (total.to(weight.dtype) for total, weight in zip(sums, weights, strict=True))
        return None, None, above, None, *rounded


def _trained(head: nn.Module) -> list[nn.Parameter]:
    return [p for p in head.parameters() if p.requires_grad]


def _exact(numbers: Tensor) -> Tensor:
    """In float32, if not in more."""
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))


def _chunk(hidden: Tensor, targets: Tensor, *, head: nn.Module, temperature: float, with_entropy: bool) -> _Found:
    logits = _exact(head(hidden))
    if temperature != 1.0:  # at 1 the division would only copy [chunk, V]
        logits = logits / temperature
    if not with_entropy:
        return (-functional.cross_entropy(logits, targets, reduction="none"),)
    logprobs = logits.log_softmax(dim=-1)
    entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropy
