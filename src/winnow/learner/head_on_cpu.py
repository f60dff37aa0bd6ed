"""Log-probs of an output layer in 16 bits on a CPU, and their gradients: the softmax of a few rows at a time.

The logits [chunk, V] exist once, in the model's precision. Their float32 copies, maxima, exponentials and gradients
are made for so few rows that they stay in the cache. The gradients replace the logits. If there is a single chunk,
its logits are kept from forward to backward, and the output layer is multiplied three times instead of four.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from winnow.learner.gradient_sums import add_rounded
from winnow.memory.footprint import PIECE as CACHED
from winnow.models.adapter import VALUES
from winnow.models.device import is_cpu


def computes(head: nn.Module, hidden: Tensor) -> bool:
    """Whether the log-probs of hidden states are computed here: in 16 bits on a CPU, by torch's linear layer.

    Float32 keeps torch's log-softmax, and so its last bits.
    """
    return (
        is_cpu(hidden.device) and hidden.dtype.itemsize == 2 and type(head) is nn.Linear and "forward" not in vars(head)
    )


def token_logprobs(hidden: Tensor, head: nn.Linear, targets: Tensor, *, temperature: float, chunk: int) -> Tensor:
    """See `winnow.learner.head.token_logprobs`, without the entropy."""
    given = (head, temperature, chunk, hidden, targets, *trained(head))
    logprobs: Tensor = _Logprobs.apply(*given)  # type: ignore[no-untyped-call]
    return logprobs


class _Logprobs(torch.autograd.Function):
    """The log-probs [T], from hidden states [T, H] and targets [T]."""

    @staticmethod
    def forward(
        ctx: Any, head: nn.Linear, temperature: float, chunk: int, hidden: Tensor, targets: Tensor, *weights: Tensor
    ) -> Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logprobs, tops, sums = (torch.empty(len(hidden), dtype=wide) for _ in range(3))
        ctx.head, ctx.temperature, ctx.chunk, ctx.logits = head, temperature, chunk, None
        keeps = len(hidden) <= chunk and any(ctx.needs_input_grad)
        for part in _slices(len(hidden), chunk):
            logits = head.forward(hidden[part])  # without hooks: they cannot follow a module inside this function
            for rows in _slices(len(logits), max(1, CACHED // logits.shape[1])):
                numbers = scaled(logits[rows], temperature)
                top = numbers.amax(-1, keepdim=True)
                total = numbers.sub(top).exp_().sum(-1).log_()
                place = slice(part.start + rows.start, part.start + rows.stop)
                tops[place], sums[place] = top[:, 0], total
                logprobs[place] = numbers.gather(1, targets[place, None]).sub_(top)[:, 0].sub_(total)
            ctx.logits = logits if keeps else None
            del logits  # [chunk, V], before the next chunk's
        ctx.save_for_backward(hidden, targets, tops, sums)
        return logprobs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        hidden, targets, tops, sums = ctx.saved_tensors
        head, below, shares = ctx.head, torch.empty_like(hidden), list[Tensor]()
        parts = list(_slices(len(hidden), ctx.chunk))
        for part in reversed(parts):
            logits, ctx.logits = head.forward(hidden[part]) if ctx.logits is None else ctx.logits, None
            scale, states = above[part] / ctx.temperature, (targets[part], tops[part], sums[part])
            _replace_by_gradients(logits, *states, scale, ctx.temperature)
            torch.mm(logits, head.weight, out=below[part])
            of_part = [logits.mT @ hidden[part] if p.dim() == 2 else logits.sum(0) for p in trained(head)]
            del logits  # [chunk, V], before the next chunk's
            if not shares:  # summed over chunks in float32, and rounded once
                shares = of_part if len(parts) == 1 else [share.to(sums.dtype) for share in of_part]
            else:
                list(map(add_rounded, shares, of_part))
            del of_part  # [V, H], before the next chunk's
        rounded = [share.to(weight.dtype) for share, weight in zip(shares, trained(head), strict=True)]
        return None, None, None, below, None, *rounded


def _replace_by_gradients(
    logits: Tensor, targets: Tensor, tops: Tensor, sums: Tensor, scale: Tensor, temperature: float
) -> None:
    """Replace logits [c, V] by scale * (onehot - softmax), in their precision."""
    for rows in _slices(len(logits), max(1, CACHED // logits.shape[1])):
        shares = scaled(logits[rows], temperature).sub(tops[rows, None]).sub_(sums[rows, None]).exp_()
        gradients = shares.mul_(scale[rows, None].neg())
        gradients.scatter_add_(1, targets[rows, None], scale[rows, None])
        logits[rows] = gradients


def exact(numbers: Tensor) -> Tensor:
    """The numbers in float32, or in float64 where they are float64."""
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))


def scaled(logits: Tensor, temperature: float) -> Tensor:
    """The exact logits over the temperature. Dividing by 1 would only copy [chunk, V]."""
    return exact(logits) if temperature == 1.0 else exact(logits) / temperature


def trained(head: nn.Module) -> list[nn.Parameter]:
    """The parameters of an output layer that are trained, without a value model's adapter, which no logit reads."""
    return [p for name, p in head.named_parameters() if p.requires_grad and VALUES not in name.split(".")]


def _slices(length: int, each: int) -> Iterator[slice]:
    """Slices of at most `each` rows, of `length` rows."""
    return (slice(start, min(length, start + each)) for start in range(0, length, each))
