"""Log-probabilities of given tokens from hidden states, without the logits of the whole micro-batch in memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def token_logprobs(
    hidden: Tensor, head: nn.Module, targets: Tensor, *, temperature: float, chunk: int, with_entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """log p of `targets` [T] under softmax(head(`hidden` [T, H]) / temperature), and on request the entropy [T].

    Works through `chunk` tokens at a time; backward computes each chunk's logits again, so no more than [chunk, V]
    exists at once. The softmax is taken in float32, in float64 for float64 logits.
    """
    pieces = []
    for piece in zip(torch.split(hidden, chunk), torch.split(targets, chunk), strict=True):
        arguments = (*piece, head, temperature, with_entropy)
        if torch.is_grad_enabled():
            pieces.append(checkpoint(_chunk, *arguments, use_reentrant=False, preserve_rng_state=False))
        else:
            pieces.append(_chunk(*arguments))
    logprobs, entropies = zip(*pieces, strict=True)
    return torch.cat(logprobs), torch.cat(entropies) if with_entropy else None


def _chunk(
    hidden: Tensor, targets: Tensor, head: nn.Module, temperature: float, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    logits = head(hidden)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1.0:  # at 1 the division would only copy [chunk, V]
        logits = logits / temperature
    if not with_entropy:
        return -functional.cross_entropy(logits, targets, reduction="none"), None
    logprobs = logits.log_softmax(dim=-1)
    entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropy
