"""How rows become model input, and which hidden states predict their completion tokens.

Side by side: prompt and completion in one row, padded on the right. Under causal attention no token sees what stands to
its right, so padding needs no mask. Or shared: each prompt is read once, and its completions are read on top of its
keys and values. Both give the same hidden states; rollouts of one prompt make the second the cheaper one, unless
completions are long beside it: its attention is over a mask, which causal attention does without.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from winnow.records import IntArray, TrainingSequence

WORTHWHILE = 0.9  # of the tokens: two passes that save less are no faster than one
SHORT = 256  # tokens of a completion whose attention costs little, masked or not


def hidden_states(decoder: nn.Module, rows: Sequence[TrainingSequence], *, pad_token: int, may_share: bool) -> Tensor:
    """[T, H] what predicts each completion token, row after row; `may_share` allows the second way where it pays.

    Raises ValueError for a prompt without tokens, as nothing then predicts the first token after it.
    """
    for row in rows:
        if len(row.prompt.tokens) == 0:
            raise ValueError(f"prompt {row.prompt.id!r} has no tokens, so nothing predicts the first of its completion")
    if may_share and shares(rows):
        return _shared(decoder, rows, pad_token)
    device = next(decoder.parameters()).device
    tokens, predicting, _ = (part.to(device) for part in side_by_side(rows, pad_token))
    hidden: Tensor = decoder(input_ids=tokens, use_cache=False).last_hidden_state
    return hidden.flatten(0, 1).index_select(0, predicting)


def shares(rows: Sequence[TrainingSequence]) -> bool:
    """Whether reading each prompt once pays."""
    longest = max(len(row.rollout.tokens) for row in rows)
    if longest > max(SHORT, *(len(row.prompt.tokens) for row in rows)):
        return False
    return tokens_shared(rows) < WORTHWHILE * tokens_side_by_side(rows)


def tokens_side_by_side(rows: Sequence[TrainingSequence]) -> int:
    """Tokens that are read, padding included."""
    return len(rows) * max(len(row.prompt.tokens) + len(row.rollout.tokens) for row in rows)


def tokens_shared(rows: Sequence[TrainingSequence]) -> int:
    """Tokens that are read, padding included, when each prompt is read once."""
    prompts = {id(row.prompt): len(row.prompt.tokens) for row in rows}.values()
    return len(prompts) * max(prompts) + len(rows) * max(len(row.rollout.tokens) for row in rows)


def targets(rows: Sequence[TrainingSequence]) -> IntArray:
    """[T] the completion tokens, row after row."""
    return np.concatenate([row.rollout.tokens for row in rows])


def side_by_side(rows: Sequence[TrainingSequence], pad_token: int) -> tuple[Tensor, Tensor, Tensor]:
    """Model input [R, S], flat positions that predict a completion token [T], and those tokens [T].

    The last token of a completion predicts nothing and is not fed.
    """
    tokens = _padded([np.concatenate([row.prompt.tokens, row.rollout.tokens[:-1]]) for row in rows], pad_token)
    first = np.arange(len(rows)) * tokens.shape[1] + [len(row.prompt.tokens) - 1 for row in rows]
    predicting = [start + np.arange(len(row.rollout.tokens)) for start, row in zip(first, rows, strict=True)]
    return torch.from_numpy(tokens), torch.from_numpy(np.concatenate(predicting)), torch.from_numpy(targets(rows))


def _shared(decoder: nn.Module, rows: Sequence[TrainingSequence], pad_token: int) -> Tensor:
    device = next(decoder.parameters()).device
    prompts = list({id(row.prompt): row.prompt for row in rows}.values())
    places = {id(prompt): place for place, prompt in enumerate(prompts)}
    owner = torch.tensor([places[id(row.prompt)] for row in rows], device=device)
    lengths = torch.tensor([len(prompt.tokens) for prompt in prompts], device=device)
    tokens = torch.from_numpy(_padded([prompt.tokens for prompt in prompts], pad_token)).to(device)
    read = decoder(input_ids=tokens, use_cache=True, past_key_values=DynamicCache())
    last: Tensor = read.last_hidden_state[torch.arange(len(prompts), device=device), lengths - 1]
    fed = torch.from_numpy(_padded([row.rollout.tokens[:-1] for row in rows], pad_token)).to(device)
    if fed.shape[1] == 0:
        return torch.index_select(last, 0, owner)
    then = decoder(
        input_ids=fed,
        attention_mask=_mask(lengths[owner], tokens.shape[1], fed.shape[1], last.dtype),
        position_ids=lengths[owner, None] + torch.arange(fed.shape[1], device=device),
        use_cache=True,
        past_key_values=_of_owners(read.past_key_values, owner),
    )
    hidden = torch.cat([last.index_select(0, owner)[:, None], then.last_hidden_state], dim=1)
    predicting = [place * hidden.shape[1] + np.arange(len(row.rollout.tokens)) for place, row in enumerate(rows)]
    return hidden.flatten(0, 1).index_select(0, torch.from_numpy(np.concatenate(predicting)).to(device))


def _of_owners(read: DynamicCache, owner: Tensor) -> DynamicCache:
    """The keys and values of each row's prompt."""
    cache = DynamicCache()
    for place, layer in enumerate(read.layers):
        cache.update(layer.keys.index_select(0, owner), layer.values.index_select(0, owner), place)
    return cache


def _mask(lengths: Tensor, prompt: int, completion: int, dtype: torch.dtype) -> Tensor:
    """[R, 1, L, P + L], 0 where a completion token may look (its prompt's real tokens, and its own up to itself)."""
    on_prompt = (torch.arange(prompt, device=lengths.device) < lengths[:, None])[:, None].expand(-1, completion, -1)
    causal = torch.ones(completion, completion, dtype=torch.bool, device=lengths.device).tril()
    seen = torch.cat([on_prompt, causal.expand(len(lengths), -1, -1)], dim=-1)
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)[:, None]


def _padded(parts: Sequence[IntArray], pad_token: int) -> IntArray:
    """[rows, longest], padded on the right."""
    tokens = np.full((len(parts), max(map(len, parts))), pad_token, dtype=np.int64)
    for row, part in zip(tokens, parts, strict=True):
        row[: len(part)] = part
    return tokens
