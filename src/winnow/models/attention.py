"""Attention of short texts in 16 bits on a CPU, computed in float32.

torch's fused attention multiplies one head of one text at a time. In 16 bits on a CPU, the start of a product then
costs more than the product: for texts of 45 tokens its backward takes eight times as long as all products together.
Here one product has all heads and texts. No scores are kept for backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from winnow.models.device import is_cpu

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "winnow_short"
SHORT = 128  # most keys of a text; torch's attention catches up with twice as many
CACHED = 2**19  # scores at a time, which stay in the cache
MORE = ("sliding_window", "softcap", "s_aux")  # options of models with more than full attention
LEAST = torch.finfo(torch.float32).min  # of a hidden score: with -inf, a token that attends to none would get NaN


def attend_short(model: PreTrainedModel) -> None:
    """Make a model with torch's attention attend through `attention` from now on."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(NAME)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """transformers' attention [R, L, heads, D] of queries [R, heads, L, D] over keys and values [R, heads of keys, C,
    D], on which gradients flow back. Elsewhere than stated above it is torch's.

    `mask` [R or 1, 1, L, C] is added to the scores, or True for a visible one. Without it attention is causal.
    """
    if _is_short(query, key, value, mask, options) and getattr(module, "is_causal", True):
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        output: Tensor = _Short.apply(query, key, value, _added(mask, query), scale)  # type: ignore[no-untyped-call]
        return output, None
    output, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **options)
    return output, None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def _is_short(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: dict[str, Any]) -> bool:
    length, keys = query.shape[2], key.shape[2]
    plain = not options.get("dropout") and all(options.get(name) is None for name in (*MORE, "position_bias"))
    known = mask.dim() == 4 and mask.shape[2:] == (length, keys) if mask is not None else length in (1, keys)
    one_width = value.shape[-1] == query.shape[-1]  # not so in multi-head latent attention
    here = is_cpu(query.device) and query.dtype.itemsize == 2 and one_width
    return here and 0 < keys <= SHORT and plain and known


def _added(mask: Tensor | None, query: Tensor) -> Tensor:
    """[R or 1, 1 or heads of keys, 1 or queries of each, L, C] the numbers that are added to scores."""
    length = query.shape[2]
    if mask is None:
        mask = query.new_full((1, 1, length, length), LEAST, dtype=torch.float32).triu_(1)
    elif mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=torch.float32).masked_fill_(~mask, LEAST)
    return mask.float().clamp(min=LEAST)[:, :, None]


class _Short(torch.autograd.Function):
    """Attention in pieces of texts. A piece is [texts x heads of keys, queries of each x L, D] in float32."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, added: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(query, key, value, added)
        ctx.scale = scale
        texts, heads, length, width = query.shape
        output = query.new_empty(texts, length, heads, width)
        for piece, of_piece in _pieces(query, key):
            queries, keys, values = _flat(query[piece], key), _flat(key[piece], key), _flat(value[piece], key)
            shares = shares_of(queries, keys, added[piece if len(added) > 1 else slice(None)], scale, of_piece)
            output[piece].copy_((shares @ values).view(-1, heads, length, width).transpose(1, 2))
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, added = ctx.saved_tensors
        above, gradients = above.transpose(1, 2), tuple(map(torch.empty_like, (query, key, value)))
        for piece, of_piece in _pieces(query, key):
            queries, keys, values = _flat(query[piece], key), _flat(key[piece], key), _flat(value[piece], key)
            given = _flat(above[piece], key)
            shares = shares_of(queries, keys, added[piece if len(added) > 1 else slice(None)], ctx.scale, of_piece)
            found = gradients_of(given, queries, keys, values, shares, ctx.scale)
            for out, gradient in zip(gradients, found, strict=True):
                out[piece].copy_(gradient.view(out[piece].shape))
        return *gradients, None, None


def _pieces(query: Tensor, key: Tensor) -> Iterator[tuple[slice, tuple[int, ...]]]:
    """Texts of at most CACHED scores together, and the shape of their scores."""
    (texts, heads, length, _), (_, of_keys, keys, _) = query.shape, key.shape
    each = max(1, CACHED // (heads * length * keys))
    for start in range(0, texts, each):
        piece = slice(start, min(texts, start + each))
        yield piece, (piece.stop - piece.start, of_keys, heads // of_keys, length, keys)


def _flat(states: Tensor, key: Tensor) -> Tensor:
    """[texts x heads of keys, tokens, D] in float32, of [texts, heads, L, D]: the queries of the heads that share keys
    are tokens of one matrix.
    """
    whole = torch.empty(states.shape, dtype=torch.float32).copy_(states)
    return whole.view(len(states) * key.shape[1], -1, states.shape[-1])


def shares_of(queries: Tensor, keys: Tensor, added: Tensor, scale: float, shape: tuple[int, ...]) -> Tensor:
    """The softmax of the scores, as [texts x heads of keys, queries of each x L, C]."""
    scores = (queries @ keys.mT).mul_(scale).view(shape).add_(added)
    shares: Tensor = scores.softmax(-1)
    return shares.view(len(queries), -1, shape[-1])


def gradients_of(
    given: Tensor, queries: Tensor, keys: Tensor, values: Tensor, shares: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values, from that of the result `shares_of(...) @ values`."""
    to_scores = torch._softmax_backward_data(given @ values.mT, shares, -1, shares.dtype).mul_(scale)
    return to_scores @ keys, to_scores.mT @ queries, shares.mT @ given
