"""Attention over the texts of a packed row on a CPU, several texts in one product.

Texts of similar length are padded to pieces of at most CACHED scores. Padding is only in attention: every other
operation of the model has the tokens of the row alone. A completion attends to its prompt and to itself, and the
gradients of a prompt's keys and values are summed over its completions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from winnow.models.attention import CACHED, LEAST, SHORT, gradients_of, shares_of


class Segment(NamedTuple):
    """Adjacent tokens: a prompt, or a completion, which also attends to its prompt."""

    start: int
    end: int
    prompt_start: int  # of the prompt that it attends to; prompt_start = prompt_end for a prompt itself
    prompt_end: int


@dataclass(frozen=True, slots=True)
class Places:
    """The tokens of n texts in a row, padded on the right to [n, L]."""

    tokens: Tensor  # [n, L] places in the row; padding repeats the text's first
    real: Tensor | None  # [T] those of [n x L] that are no padding; None: all

    @classmethod
    def of(cls, bounds: Sequence[tuple[int, int]]) -> Places:
        """Of the texts from `start` to `end` - 1."""
        start, lengths = np.array(bounds)[:, :1], np.diff(np.array(bounds))
        column = np.arange(lengths.max())
        is_real = column < lengths
        tokens = torch.from_numpy(start + np.where(is_real, column, 0))
        return cls(tokens, None if is_real.all() else torch.from_numpy(np.flatnonzero(is_real)))

    def read(self, states: Tensor) -> Tensor:
        """[n, heads, L, D] of a row's [S, heads, D], at least in float32."""
        taken = states.index_select(0, self.tokens.flatten()).view(*self.tokens.shape, *states.shape[1:])
        exact = torch.promote_types(states.dtype, torch.float32)
        return torch.empty_like(taken.transpose(1, 2), dtype=exact, memory_format=torch.contiguous_format).copy_(
            taken.transpose(1, 2)
        )

    def write(self, states: Tensor, row: Tensor, *, add: bool = False) -> None:
        """Set the row [S, heads, D] at these places to [n, heads, L, D], or add them."""
        flat, tokens = states.transpose(1, 2).flatten(0, 1), self.tokens.flatten()
        if self.real is not None:
            flat, tokens = flat.index_select(0, self.real), tokens.index_select(0, self.real)
        if add:
            flat = row.index_select(0, tokens).add_(flat)
        row.index_copy_(0, tokens, flat.to(row.dtype))

    def clear_padding(self, states: Tensor) -> None:
        """Set [n, heads, L, D] to 0 at padding."""
        if self.real is not None:
            kept = states.new_zeros(self.tokens.numel()).index_fill_(0, self.real, 1.0)
            states.mul_(kept.view(len(states), 1, -1, 1))


@dataclass(frozen=True, slots=True)
class Piece:
    """n texts that attend together: L queries each, over P keys of a prompt and L of their own."""

    own: Places  # [n, L]
    prompts: Places | None  # [p, P]
    owner: Tensor  # [n] the prompt of each text
    added: Tensor  # [n or 1, 1, 1, L, P + L] numbers that are added to scores

    def keys(self, row: Tensor) -> Tensor:
        """[n, heads, P + L, D] keys or values of each text."""
        own = self.own.read(row)
        if self.prompts is None:
            return own
        return torch.cat([self.prompts.read(row).index_select(0, self.owner), own], 2)

    def add_keys(self, gradients: Tensor, row: Tensor) -> None:
        """Add gradients of `keys` to those of the row."""
        if self.prompts is not None:
            prompts, width = self.prompts.tokens.shape
            of_owner = torch.nn.functional.one_hot(self.owner, prompts).to(gradients.dtype)
            summed = of_owner.T @ gradients[:, :, :width].flatten(1)
            self.prompts.write(summed.view(prompts, *gradients[:, :, :width].shape[1:]), row, add=True)
            gradients = gradients[:, :, width:]
        self.own.write(gradients, row, add=True)


def pieces(segments: Sequence[Segment], heads: int) -> list[Piece] | None:
    """The segments of a row in pieces, shortest first; None if a segment has too many keys for that."""
    sizes = [s.end - s.start + s.prompt_end - s.prompt_start for s in segments]
    if max(sizes) > SHORT:
        return None
    found = list[Piece]()
    for is_prompt in (True, False):
        chosen = [i for i, s in enumerate(segments) if (s.prompt_start == s.prompt_end) == is_prompt]
        chosen.sort(key=lambda i: (sizes[i], i))
        found += [_piece(part) for part in _cut([segments[i] for i in chosen], heads)]
    return found


def _cut(segments: Sequence[Segment], heads: int) -> Iterator[list[Segment]]:
    """Parts of the segments with at most CACHED scores each, padding included."""
    part: list[Segment] = []
    queries = keys = 0
    for segment in segments:
        own, prompt = segment.end - segment.start, segment.prompt_end - segment.prompt_start
        queries, keys = max(queries, own), max(keys, prompt)
        if part and (len(part) + 1) * heads * queries * (keys + queries) > CACHED:
            yield part
            part, queries, keys = [], own, prompt
        part.append(segment)
    if part:
        yield part


def _piece(segments: Sequence[Segment]) -> Piece:
    own = Places.of([(s.start, s.end) for s in segments])
    length = own.tokens.shape[1]
    added = torch.full((1, length, length), LEAST).triu_(1)
    bounds = list(dict.fromkeys((s.prompt_start, s.prompt_end) for s in segments))
    owner = torch.tensor([bounds.index((s.prompt_start, s.prompt_end)) for s in segments])
    if segments[0].prompt_start == segments[0].prompt_end:
        return Piece(own, None, owner, added[:, None, None])
    prompts = Places.of(bounds)
    lengths = torch.tensor([end - start for start, end in bounds])[owner]
    hidden = torch.arange(prompts.tokens.shape[1]) >= lengths[:, None]  # [n, P]
    on_prompt = torch.zeros(hidden.shape).masked_fill_(hidden, LEAST)[:, None].expand(-1, length, -1)
    added = torch.cat([on_prompt, added.expand(len(segments), -1, -1)], 2)
    return Piece(own, prompts, owner, added[:, None, None])


def attend(query: Tensor, key: Tensor, value: Tensor, of_row: Sequence[Piece], scale: float) -> Tensor:
    """[1, S, heads, D] the attention of a row's queries [1, heads, S, D] over keys and values [1, heads of keys, S,
    D].
    """
    row = (states[0].transpose(0, 1) for states in (query, key, value))
    output: Tensor = _Attend.apply(*row, of_row, scale)  # type: ignore[no-untyped-call]
    return output[None]


class _Attend(torch.autograd.Function):
    """Attention [S, heads, D] of a row; no scores are kept for backward."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, of_row: Sequence[Piece], scale: float) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.pieces, ctx.scale = of_row, scale
        output = query.new_empty(query.shape)
        for piece in of_row:
            queries, keys, values = _states(piece, query, key, value)
            shares = shares_of(queries, keys, piece.added, scale, _shape(piece, query, key))
            piece.own.write(_texts(shares @ values, piece, query), output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        to_query = torch.empty_like(query)
        to_key, to_value = (torch.zeros_like(key, dtype=torch.promote_types(key.dtype, torch.float32)) for _ in "kv")
        for piece in ctx.pieces:
            queries, keys, values = _states(piece, query, key, value)
            given = piece.own.read(above)
            piece.own.clear_padding(given)
            given = given.view(queries.shape)
            shares = shares_of(queries, keys, piece.added, ctx.scale, _shape(piece, query, key))
            of_queries, of_keys, of_values = gradients_of(given, queries, keys, values, shares, ctx.scale)
            piece.own.write(_texts(of_queries, piece, query), to_query)
            piece.add_keys(_texts(of_keys, piece, key), to_key)
            piece.add_keys(_texts(of_values, piece, key), to_value)
        return to_query, to_key.to(key.dtype), to_value.to(value.dtype), None, None


def _states(piece: Piece, query: Tensor, key: Tensor, value: Tensor) -> Iterator[Tensor]:
    """[n x heads of keys, tokens, D] queries, keys and values; the queries that share keys are in one matrix."""
    batch = len(piece.owner) * key.shape[1]
    texts = itertools.chain([piece.own.read(query)], map(piece.keys, (key, value)))
    return (states.view(batch, -1, states.shape[-1]) for states in texts)


def _texts(states: Tensor, piece: Piece, like: Tensor) -> Tensor:
    """[n, heads, tokens, D] of such matrices, with the heads of `like` [S, heads, D]."""
    return states.view(len(piece.owner), like.shape[1], -1, like.shape[2])


def _shape(piece: Piece, query: Tensor, key: Tensor) -> tuple[int, ...]:
    texts, length = piece.own.tokens.shape
    return texts, key.shape[1], query.shape[1] // key.shape[1], length, piece.added.shape[-1]
