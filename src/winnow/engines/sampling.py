"""From logits and one uniform per rollout to a token and its log-prob."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from winnow.engines.harvest import Slot
from winnow.errors import EngineError
from winnow.records import FloatArray, Sampling
from winnow.seeds import Part, generator


def uniforms(seed: tuple[Part, ...], slots: Iterable[Slot], max_new_tokens: int) -> FloatArray:
    """[R, max_new_tokens] numbers in [0, 1): a row belongs to a rollout, wherever and with whomever it is sampled."""
    return np.stack([generator(*seed, slot.prompt.id, slot.index).random(max_new_tokens) for slot in slots])


def choose(logits: Tensor, uniform: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Tokens [R] and their log-probs [R] from logits [R, V] and uniforms [R], both float64 in and out.

    A token is the first whose cumulative probability exceeds the uniform. The cumulative sum runs in float64 and is
    never normalised: the uniform is scaled to its total instead, and kept below it, so that rounding cannot pick a
    token of probability 0. Temperature 0 takes the most likely token, its log-prob at temperature 1. Raises EngineError
    where logits are NaN or infinite, which the total cannot hide.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if sampling.temperature > 0:
        logits = _filtered(logits / sampling.temperature if sampling.temperature != 1 else logits, sampling)
    top, likeliest = logits.max(dim=-1, keepdim=True)
    steps = (logits - top).exp_().cumsum(dim=-1, dtype=torch.float64)
    total = steps[:, -1:]
    if not total.isfinite().all():
        raise EngineError(
            "the policy's logits are not finite: its weights have diverged; lower optimizer.learning_rate and go on "
            "from an earlier checkpoint"
        )
    if sampling.temperature > 0:
        below = torch.minimum(uniform[:, None] * total, total.nextafter(torch.zeros_like(total)))
        token = torch.searchsorted(steps, below, right=True)
    else:
        token = likeliest
    logprob = (logits.gather(-1, token) - top).double() - total.log()
    return token[:, 0], logprob[:, 0]


def _filtered(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits [R, V] with -inf where top-k, then top-p, then min-p cut; the likeliest token always stays."""
    if 0 < sampling.top_k < logits.shape[-1]:
        smallest = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if sampling.top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        before = ordered.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64).roll(1, dims=-1)
        before[:, 0] = 0
        logits = logits.scatter(-1, order, ordered.masked_fill(before >= sampling.top_p, -torch.inf))
    if sampling.min_p > 0:
        floor = logits.max(dim=-1, keepdim=True).values + float(np.log(sampling.min_p))
        logits = logits.masked_fill(logits < floor, -torch.inf)
    return logits
