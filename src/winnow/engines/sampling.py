"""Sampling of tokens and their log-probs from logits, with one uniform random number per token."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from winnow import seeds
from winnow.engines.base import PendingRollout
from winnow.errors import EngineError
from winnow.models.device import is_cpu
from winnow.records import FloatArray, IntArray, Sampling
from winnow.seeds import SeedName

BLOCK = 64  # tokens whose probabilities are summed before a single block is scanned
CACHED = 2**19  # numbers of a piece of logits, whose copies in float32 and float64 stay in a CPU's cache


def uniforms(seed: tuple[SeedName, ...], rollouts: Iterable[PendingRollout], max_new_tokens: int) -> FloatArray:
    """[R, max_new_tokens] numbers in [0, 1), a row per rollout, independent of the other rollouts of the request."""
    return seeds.uniforms(((*seed, rollout.prompt.id, rollout.index) for rollout in rollouts), max_new_tokens)


def choose(logits: Tensor, uniform: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Tokens [R] and their log-probs [R] from logits [R, V] and uniforms [R]. Uniforms and log-probs are float64.

    A token is the first whose cumulative probability exceeds the uniform. Temperature 0 takes the most likely token,
    with its log-prob at temperature 1. If a logit is NaN or plus infinity, the log-prob is NaN, which `to_host`
    refuses.

    On a CPU a few rows are chosen at a time. The numbers of all rows would pass through memory once per operation.
    """
    if not is_cpu(logits.device):
        return _choose(logits, uniform, sampling)
    rows = max(1, CACHED // logits.shape[1])
    parts = zip(torch.split(logits, rows), torch.split(uniform, rows), strict=True)
    pieces = [_choose(*part, sampling) for part in parts]
    tokens, logprobs = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    return tokens, logprobs


def _choose(logits: Tensor, uniform: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """See `choose`."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if sampling.temperature > 0:
        logits = _filter(logits / sampling.temperature if sampling.temperature != 1 else logits, sampling)
    top = logits.amax(dim=-1, keepdim=True)
    mass = (logits - top).exp_()
    sampled, total = _invert(mass, uniform[:, None].to(mass.device))
    sampled = sampled.clamp_(max=logits.shape[1] - 1)  # beyond the vocabulary only where sums are NaN
    token = sampled if sampling.temperature > 0 else logits.argmax(dim=-1, keepdim=True)
    logprob = (logits.gather(-1, token) - top).double() - total.log()
    return token[:, 0], logprob[:, 0]


def to_host(token: Tensor, logprob: Tensor) -> tuple[IntArray, FloatArray]:
    """Tokens [R] and log-probs [R] of `choose` in host memory, by a single copy: each copy waits for the device.

    Raises EngineError for a log-prob that is not finite.
    """
    both: FloatArray = torch.stack([token.double(), logprob]).numpy(force=True)  # exact: a token is below 2^53
    if not np.isfinite(both).all():
        raise EngineError(
            "the policy's logits are not finite: its weights have diverged",
            remedy="lower optimizer.learning_rate and continue from an earlier checkpoint",
            key="optimizer.learning_rate",
            code="engine.diverged",
        )
    return both[0].astype(np.int64), both[1]


def _invert(mass: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [R, 1] where the cumulative sum of mass [R, V] first exceeds uniform [R, 1] x its total, and the totals
    [R, 1].

    The sums are float64: first over blocks, then within the block that contains the token, so most of the vocabulary is
    summed but never scanned. The scaled uniform is kept below the last sum, so that rounding cannot select a token
    without mass.
    """
    missing = -mass.shape[1] % BLOCK
    blocks = (functional.pad(mass, (0, missing)) if missing else mass).view(len(mass), -1, BLOCK)
    ends = _cumulative(blocks.sum(dim=-1, dtype=torch.float64))
    sought = uniform * ends[:, -1:]
    block = _first_above(ends, sought)
    before = functional.pad(ends, (1, 0)).gather(-1, block)
    inside = _cumulative(blocks[torch.arange(len(mass), device=mass.device), block[:, 0]])
    return block * BLOCK + _first_above(before + inside, sought), ends[:, -1:]


def _cumulative(values: Tensor) -> Tensor:
    """[R, X] float64 cumulative sums of each row of values [R, X]; torch's `cumsum` may not be repeatable on a GPU."""
    if values.is_cuda and torch.are_deterministic_algorithms_enabled():
        return ascending_sums(values)
    return values.cumsum(dim=-1, dtype=torch.float64)


def ascending_sums(values: Tensor) -> Tensor:
    """[R, X] float64 cumulative sums of each row of non-negative values [R, X], by repeatable operations.

    Blocks of columns are multiplied by a triangle of ones, and the sum of the earlier blocks is added to each block. A
    product sums all of its columns in the same order. So a sum is never below the one before it, and equals it where
    the value is 0: no token without mass is ever sampled.
    """
    missing = -values.shape[1] % BLOCK
    blocks = functional.pad(values.double(), (0, missing)).view(len(values), -1, BLOCK)
    inside = blocks @ torch.ones(BLOCK, BLOCK, dtype=torch.float64, device=values.device).triu()
    before = [torch.zeros_like(inside[:, 0, 0])]
    for block in inside[:, :-1, -1].unbind(dim=1):
        before.append(before[-1] + block)
    sums = inside + torch.stack(before, dim=1).unsqueeze(-1)
    return sums.flatten(1)[:, : values.shape[1]].contiguous()


def _first_above(ends: Tensor, sought: Tensor) -> Tensor:
    """[R, 1] the first column of ascending `ends` [R, X] above `sought` [R, 1], which is kept below the last."""
    last = ends[:, -1:]
    column = torch.searchsorted(ends, torch.minimum(sought, last.nextafter(torch.zeros_like(last))), right=True)
    return column.clamp_(max=ends.shape[1] - 1)  # beyond the end only where sums are NaN, which `to_host` refuses


def _filter(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits [R, V] with -inf for tokens that top-k, then top-p, then min-p exclude; the likeliest always stays."""
    if 0 < sampling.top_k < logits.shape[-1]:
        smallest = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if sampling.top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        before = _cumulative(ordered.softmax(dim=-1)).roll(1, dims=-1)
        before[:, 0] = 0  # roll has put the total here; 0 keeps the likeliest token
        logits = logits.scatter(-1, order, ordered.masked_fill(before >= sampling.top_p, -torch.inf))
    if sampling.min_p > 0:
        floor = logits.max(dim=-1, keepdim=True).values + float(np.log(sampling.min_p))
        logits = logits.masked_fill(logits < floor, -torch.inf)
    return logits
