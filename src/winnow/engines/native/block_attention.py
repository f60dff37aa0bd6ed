"""Attention of one token per row over keys and values in blocks: work follows what was written, nothing is gathered but
queries, scores and outputs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def per_block(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Attention of queries [N, heads, X, D] within their block of keys [N, heads, D, C] and values [N, heads, C, D],
    and the log of the sum of exponentiated scores [N, heads, X]; `mask` [N, C] is added to the scores.
    """
    scores = (queries @ keys).to(mask.dtype).add_(mask[:, None, None])
    top, shares = scores.amax(dim=-1), scores.softmax(dim=-1)
    return shares.to(values.dtype) @ values, top - shares.amax(dim=-1).log_()


def joined(
    output: Tensor, total: Tensor, *, table: Tensor, held: Tensor, place: Tensor, order: Tensor, begins: Tensor
) -> tuple[Tensor, Tensor]:
    """What `per_block` gives, per sequence instead of per block: outputs [S, heads, X, D] and totals [S, heads, X].

    A sequence holds `held` [S] blocks, those in its line of `table` [S, K]; `place` [N] is where each block stands in
    the flat table. `order` [N] has their numbers sequence by sequence, and `begins` [S + 1] where each sequence begins
    there, and what belongs to none. Blocks are weighed by their share of the sum, as flash-decoding does (Dao et al.,
    2023). What is added is as much as is held, whatever the longest sequence has.
    """
    absent = torch.arange(table.shape[1], device=held.device) >= held[:, None]
    each = total.index_select(0, table.flatten()).view(*table.shape, *total.shape[1:])
    each = each.masked_fill_(absent[:, :, None, None], -torch.inf)
    whole = each.logsumexp(dim=1)
    weights = each.sub_(whole[:, None]).exp_().flatten(0, 1).index_select(0, place)
    output = output.to(total.dtype).mul_(weights[..., None])
    # In one order on every device, and in half the time of index_add_ and less
    sums = functional.embedding_bag(order, output.flatten(1), begins, mode="sum")[:-1]
    return sums.view(len(table), *output.shape[1:]), whole
