"""The gradients of all ranks, summed and never averaged: the weights of the sequences already say what each counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
import torch.distributed
from torch import Tensor

from winnow import ranks
from winnow.memory.shares import BUCKET


class HasGradient(Protocol):
    """A parameter, or what sums its gradients in more precision."""

    grad: Tensor | None


def sum_over_ranks(holders: Sequence[tuple[HasGradient, Tensor]]) -> None:
    """Add up what every rank has in `grad`, for each parameter beside it; a rank without one has added nothing to it.

    A parameter that got a gradient on no rank keeps none. The ranks get the same bits, and the same at every launch.
    """
    if ranks.count() == 1:
        return
    there = ranks.each([holder.grad is not None for holder, _ in holders])
    found = [pair for pair, *on in zip(holders, *there, strict=True) if any(on)]
    for holder, parameter in found:
        if holder.grad is None:
            dtype = torch.promote_types(parameter.dtype, torch.float32)
            holder.grad = torch.zeros(parameter.shape, dtype=dtype, device=parameter.device)
    for bucket in _buckets([holder.grad for holder, _ in found if holder.grad is not None]):
        _sum(bucket)


def _buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """In their order, of one precision each."""
    bucket = list[Tensor]()
    for gradient in gradients:
        size = sum(g.numel() for g in bucket) + gradient.numel()
        if bucket and (size > BUCKET or gradient.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(gradient)
    if bucket:
        yield bucket


def _sum(bucket: Sequence[Tensor]) -> None:
    flat = bucket[0].view(-1) if len(bucket) == 1 else torch.cat([gradient.reshape(-1) for gradient in bucket])
    given = 2 * (ranks.count() - 1) * flat.nbytes // ranks.count()  # of a ring: each share goes round twice but once
    with ranks.spent.on("gradients", given):
        torch.distributed.all_reduce(flat)
    if len(bucket) > 1:
        for gradient, total in zip(bucket, torch.split(flat, [g.numel() for g in bucket]), strict=True):
            gradient.copy_(total.view_as(gradient))
