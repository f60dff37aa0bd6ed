"""Attention of one token per row over keys and values in blocks.

The work grows with the tokens written. Only queries, scores and outputs are gathered, not keys and values.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def attend_per_block(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Attention of queries [N, heads, X, D] within their block of keys [N, heads, D, C] and values [N, heads, C, D].

    Returns the outputs [N, heads, X, D] and the log-sum-exp of the scores [N, heads, X]. `mask` [N, C] is added to the
    scores.
    """
    scores = (queries @ keys).to(mask.dtype).add_(mask[:, None, None])
    top, shares = scores.amax(dim=-1), scores.softmax(dim=-1)
    # The largest share is exp(top - total), so this is the total without a second pass over the scores
    return shares.to(values.dtype) @ values, top - shares.amax(dim=-1).log_()


def combine_blocks(
    output: Tensor, total: Tensor, *, table: Tensor, held: Tensor, place: Tensor, order: Tensor, starts: Tensor
) -> tuple[Tensor, Tensor]:
    """Combine the results of `attend_per_block` per sequence: outputs [S, heads, X, D] and totals [S, heads, X].

    A sequence has `held` [S] blocks, listed in its line of `table` [S, K]; `place` [N] is the index of each block in
    the flat table. `order` [N] lists the blocks sequence by sequence, and `starts` [S + 1] is the first index of each
    sequence in it; the last entry is the start of the blocks that belong to none. Each block is weighted by its share
    of the sum, as in flash-decoding (Dao et al., 2023). The number of terms is that of the blocks in use, independent
    of the longest sequence.
    """
    absent = torch.arange(table.shape[1], device=held.device) >= held[:, None]
    each = total.index_select(0, table.flatten()).view(*table.shape, *total.shape[1:])
    each = each.masked_fill_(absent[:, :, None, None], -torch.inf)
    whole = each.logsumexp(dim=1)
    weights = each.sub_(whole[:, None]).exp_().flatten(0, 1).index_select(0, place)
    output = output.to(total.dtype).mul_(weights[..., None])
    # embedding_bag sums in one order on every device, and takes at most half the time of index_add_
    sums = functional.embedding_bag(order, output.flatten(1), starts, mode="sum")[:-1]
    return sums.view(len(table), *output.shape[1:]), whole
