"""Gradients are summed over ranks and never averaged: the sequence weights already include every normalisation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
import torch.distributed
from torch import Tensor

from winnow import ranks
from winnow.models.device import is_cpu

BUCKET = 2**25  # numbers that are summed at once; the gradients of several parameters are copied for it
CACHED = 2**17  # numbers of a gradient that are added to a float32 sum at a time


class HasGradient(Protocol):
    """A parameter, or the object that sums its gradients in higher precision."""

    grad: Tensor | None


def sum_over_ranks(holders: Sequence[tuple[HasGradient, Tensor]]) -> None:
    """Sum every rank's `grad` for each parameter in the pairs; a rank without a gradient contributes zero.

    A parameter that has no gradient on any rank keeps None. All ranks get the same bits, and the same bits at every
    launch.
    """
    if ranks.count() == 1:
        return
    present = ranks.gather_from_all([holder.grad is not None for holder, _ in holders])
    pairs = [pair for pair, *on in zip(holders, *present, strict=True) if any(on)]
    for holder, parameter in pairs:
        if holder.grad is None:
            dtype = torch.promote_types(parameter.dtype, torch.float32)
            holder.grad = torch.zeros(parameter.shape, dtype=dtype, device=parameter.device)
    for bucket in _buckets([holder.grad for holder, _ in pairs if holder.grad is not None]):
        _sum(bucket)


def _buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Consecutive gradients of one dtype, at most BUCKET numbers at a time; a larger gradient is alone."""
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
    sent = 2 * (ranks.count() - 1) * flat.nbytes // ranks.count()  # of a ring all-reduce
    with ranks.spent.on("gradients", sent):
        torch.distributed.all_reduce(flat)
    if len(bucket) > 1:
        for gradient, total in zip(bucket, torch.split(flat, [g.numel() for g in bucket]), strict=True):
            gradient.copy_(total.view_as(gradient))


def add_rounded(total: Tensor, gradient: Tensor) -> None:
    """Add a 16-bit gradient to a float32 sum. On a CPU, torch first makes a float32 copy of the gradient: of a piece at
    a time, it stays in the cache.
    """
    # Sparse: of an embedding whose output layer was not used
    if gradient.is_sparse or not is_cpu(total.device) or not (total.is_contiguous() and gradient.is_contiguous()):
        total.add_(gradient)
        return
    parts = (torch.split(tensor.view(-1), CACHED) for tensor in (total, gradient))
    for of_total, of_gradient in zip(*parts, strict=True):
        of_total.add_(of_gradient)
