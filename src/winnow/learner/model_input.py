"""How sequences become model input, and which hidden states predict their completion tokens.

Side by side: prompt and completion in one row, padded on the right. Under causal attention no token sees what stands to
its right, so padding needs no mask. Or shared: each prompt is read once, and its completions are read on top of its
keys and values. Both give the same hidden states; rollouts of one prompt make the second the cheaper one, unless
completions are long beside it: its attention is over a mask, which causal attention does without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from winnow.records import BoolArray, IntArray, Prompt, Rollout, TrainingSequence

WORTHWHILE = 0.9  # of the tokens: two passes that save less are no faster than one
SHORT = 256  # tokens of a completion whose attention costs little, masked or not


class PromptAndRollout(NamedTuple):
    """A sequence to read, of which nothing is to be learned."""

    prompt: Prompt
    rollout: Rollout


AnySequence = TrainingSequence | PromptAndRollout


class ModelInput(NamedTuple):
    """R sequences side by side, padded on the right to S tokens."""

    tokens: Tensor  # [R, S]; the last token of a completion predicts nothing and is left out
    predicting: Tensor  # [T] flat positions that predict a completion token, sequence after sequence


def hidden_states(backbone: nn.Module, sequences: Sequence[AnySequence], *, pad_token: int, may_share: bool) -> Tensor:
    """[T, H] what predicts each completion token, sequence after sequence; `may_share` allows the second way where it
    pays.

    Raises ValueError for a prompt without tokens, as nothing then predicts the first token after it.
    """
    for sequence in sequences:
        if len(sequence.prompt.tokens) == 0:
            raise ValueError(
                f"prompt {sequence.prompt.id!r} has no tokens, so nothing predicts the first of its completion"
            )
    if may_share and shares(sequences):
        return _shared(backbone, sequences, pad_token)
    given = side_by_side(sequences, pad_token, next(backbone.parameters()).device)
    hidden: Tensor = backbone(input_ids=given.tokens, use_cache=False).last_hidden_state
    return predictors(hidden, given)


def predictors(hidden: Tensor, given: ModelInput) -> Tensor:
    """[T, H] of [R, S, H] hidden states: those that predict a completion token."""
    return hidden.flatten(0, 1).index_select(0, given.predicting)


def shares(sequences: Sequence[AnySequence]) -> bool:
    """Whether reading each prompt once pays."""
    longest = max(len(sequence.rollout.tokens) for sequence in sequences)
    if longest > max(SHORT, *(len(sequence.prompt.tokens) for sequence in sequences)):
        return False
    return tokens_shared(sequences) < WORTHWHILE * tokens_side_by_side(sequences)


def length(sequence: AnySequence) -> int:
    """Tokens of prompt and completion."""
    return len(sequence.prompt.tokens) + len(sequence.rollout.tokens)


def tokens_side_by_side(sequences: Sequence[AnySequence]) -> int:
    """Tokens that are read, padding included."""
    return len(sequences) * max(map(length, sequences))


def tokens_shared(sequences: Sequence[AnySequence]) -> int:
    """Tokens that are read, padding included, when each prompt is read once."""
    prompts = {id(sequence.prompt): len(sequence.prompt.tokens) for sequence in sequences}.values()
    return len(prompts) * max(prompts) + len(sequences) * max(len(sequence.rollout.tokens) for sequence in sequences)


def targets(sequences: Sequence[AnySequence]) -> IntArray:
    """[T] the completion tokens, sequence after sequence."""
    return np.concatenate([sequence.rollout.tokens for sequence in sequences])


def trained(sequences: Sequence[AnySequence]) -> BoolArray:
    """[T] False where a completion token was not the policy's choice."""
    return np.concatenate([_trainable(sequence.rollout) for sequence in sequences])


def side_by_side(sequences: Sequence[AnySequence], pad_token: int, device: torch.device) -> ModelInput:
    """The first way, on a device."""
    tokens = _padded([np.concatenate([s.prompt.tokens, s.rollout.tokens[:-1]]) for s in sequences], pad_token)
    first = np.arange(len(sequences)) * tokens.shape[1] + [len(s.prompt.tokens) - 1 for s in sequences]
    predicting = [start + np.arange(len(s.rollout.tokens)) for start, s in zip(first, sequences, strict=True)]
    return ModelInput(torch.from_numpy(tokens).to(device), torch.from_numpy(np.concatenate(predicting)).to(device))


def _trainable(rollout: Rollout) -> BoolArray:
    mask = rollout.trainable
    return np.ones(len(rollout.tokens), dtype=np.bool_) if mask is None else mask


def _shared(backbone: nn.Module, sequences: Sequence[AnySequence], pad_token: int) -> Tensor:
    device = next(backbone.parameters()).device
    prompts = list({id(sequence.prompt): sequence.prompt for sequence in sequences}.values())
    places = {id(prompt): place for place, prompt in enumerate(prompts)}
    owner = torch.tensor([places[id(sequence.prompt)] for sequence in sequences], device=device)
    lengths = torch.tensor([len(prompt.tokens) for prompt in prompts], device=device)
    tokens = torch.from_numpy(_padded([prompt.tokens for prompt in prompts], pad_token)).to(device)
    read = backbone(input_ids=tokens, use_cache=True, past_key_values=DynamicCache())
    last: Tensor = read.last_hidden_state[torch.arange(len(prompts), device=device), lengths - 1]
    rest = torch.from_numpy(_padded([s.rollout.tokens[:-1] for s in sequences], pad_token)).to(device)
    if rest.shape[1] == 0:
        return torch.index_select(last, 0, owner)
    then = backbone(
        input_ids=rest,
        attention_mask=_mask(lengths[owner], tokens.shape[1], rest.shape[1], last.dtype),
        position_ids=lengths[owner, None] + torch.arange(rest.shape[1], device=device),
        use_cache=True,
        past_key_values=_of_owners(read.past_key_values, owner),
    )
    hidden = torch.cat([last.index_select(0, owner)[:, None], then.last_hidden_state], dim=1)
    predicting = [place * hidden.shape[1] + np.arange(len(s.rollout.tokens)) for place, s in enumerate(sequences)]
    return hidden.flatten(0, 1).index_select(0, torch.from_numpy(np.concatenate(predicting)).to(device))


def _of_owners(read: DynamicCache, owner: Tensor) -> DynamicCache:
    """The keys and values of each sequence's prompt."""
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
    """[parts, longest], padded on the right."""
    tokens = np.full((len(parts), max(map(len, parts))), pad_token, dtype=np.int64)
    for line, part in zip(tokens, parts, strict=True):
        line[: len(part)] = part
    return tokens
