"""Turn sequences into model input, and select the hidden states that predict their completion tokens.

There are four layouts, which give the same hidden states:

    padded  prompt and completion in one row, padded on the right. Under causal attention no token attends to its
            right, so padding needs no mask
    shared  each prompt is read once, and its completions attend to its keys and values through a mask. This is
            cheaper for several rollouts of one prompt, unless completions are long
    packed  all prompts and completions in one row without padding, each prompt once; see packing.py
    joined  as packed where all texts are short, else as shared. Micro-batches are divided as for the padded layout
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from winnow.learner import packing
from winnow.models.attention import SHORT as SHORT_KEYS
from winnow.models.device import to_device
from winnow.records import BoolArray, IntArray, PromptAndRollout, TrainingSequence

Layout = Literal["padded", "shared", "packed", "joined"]  # "shared" falls back to padded where sharing does not pay

WORTHWHILE = 0.9  # share of the tokens: two passes that save less are no faster than one
SHORT = 256  # completion tokens up to which attention is cheap, masked or not


AnySequence = TrainingSequence | PromptAndRollout


class ModelInput(NamedTuple):
    """R sequences in rows, padded on the right to S tokens."""

    tokens: Tensor  # [R, S]; without the last token of each completion, which predicts nothing
    predicting: Tensor  # [T] flat positions that predict a completion token, sequence after sequence


def hidden_states(
    backbone: nn.Module, sequences: Sequence[AnySequence], *, pad_token: int, layout: Layout = "padded"
) -> Tensor:
    """[T, H] hidden states that predict each completion token, sequence after sequence.

    Raises ValueError for a prompt without tokens, because nothing then predicts the first completion token.
    """
    for sequence in sequences:
        if len(sequence.prompt.tokens) == 0:
            raise ValueError(
                f"prompt {sequence.prompt.id!r} has no tokens, so nothing predicts its completion's first token"
            )
    if layout == "packed" or (layout == "joined" and max(map(length, sequences)) <= SHORT_KEYS):
        return _packed(backbone, sequences)
    if layout in ("shared", "joined") and sharing_pays(sequences):
        return _shared(backbone, sequences, pad_token)
    given = side_by_side(sequences, pad_token, next(backbone.parameters()).device)
    hidden: Tensor = backbone(input_ids=given.tokens, use_cache=False).last_hidden_state
    return predictors(hidden, given)


def predictors(hidden: Tensor, given: ModelInput) -> Tensor:
    """[T, H] those of the [R, S, H] hidden states that predict a completion token."""
    return hidden.flatten(0, 1).index_select(0, given.predicting)


def sharing_pays(sequences: Sequence[AnySequence]) -> bool:
    """Whether reading each prompt once pays. The mask [R, L, P + L] is quadratic in L, so L is bounded."""
    longest = max(len(sequence.rollout.tokens) for sequence in sequences)
    longest_prompt = max(len(sequence.prompt.tokens) for sequence in sequences)
    if longest > min(packing.MASKED, max(SHORT, longest_prompt)):
        return False
    return tokens_shared(sequences) < WORTHWHILE * tokens_side_by_side(sequences)


def length(sequence: AnySequence) -> int:
    """Tokens of prompt and completion."""
    return len(sequence.prompt.tokens) + len(sequence.rollout.tokens)


def tokens_side_by_side(sequences: Sequence[AnySequence]) -> int:
    """Tokens read in the padded layout, with padding."""
    return len(sequences) * max(map(length, sequences))


def tokens_shared(sequences: Sequence[AnySequence]) -> int:
    """Tokens read in the shared layout, with padding."""
    prompts = {id(sequence.prompt): len(sequence.prompt.tokens) for sequence in sequences}.values()
    return len(prompts) * max(prompts) + len(sequences) * max(len(sequence.rollout.tokens) for sequence in sequences)


def targets(sequences: Sequence[AnySequence]) -> IntArray:
    """[T] the completion tokens, sequence after sequence."""
    return np.concatenate([sequence.rollout.tokens for sequence in sequences])


def trained(sequences: Sequence[AnySequence]) -> BoolArray:
    """[T] False where the policy did not sample the completion token."""
    return np.concatenate([sequence.rollout.sampled for sequence in sequences])


def side_by_side(sequences: Sequence[AnySequence], pad_token: int, device: torch.device) -> ModelInput:
    """Input of the padded layout, on a device."""
    tokens = _padded([np.concatenate([s.prompt.tokens, s.rollout.tokens[:-1]]) for s in sequences], pad_token)
    first = np.arange(len(sequences)) * tokens.shape[1] + [len(s.prompt.tokens) - 1 for s in sequences]
    predicting = [start + np.arange(len(s.rollout.tokens)) for start, s in zip(first, sequences, strict=True)]
    return ModelInput(to_device(tokens, device), to_device(np.concatenate(predicting), device))


def _shared(backbone: nn.Module, sequences: Sequence[AnySequence], pad_token: int) -> Tensor:
    device = next(backbone.parameters()).device
    prompts = list({id(sequence.prompt): sequence.prompt for sequence in sequences}.values())
    places = {id(prompt): place for place, prompt in enumerate(prompts)}
    owner = to_device(np.array([places[id(sequence.prompt)] for sequence in sequences]), device)
    lengths = to_device(np.array([len(prompt.tokens) for prompt in prompts]), device)
    tokens = to_device(_padded([prompt.tokens for prompt in prompts], pad_token), device)
    read = backbone(input_ids=tokens, use_cache=True, past_key_values=DynamicCache())
    last: Tensor = read.last_hidden_state[torch.arange(len(prompts), device=device), lengths - 1]
    rest = to_device(_padded([s.rollout.tokens[:-1] for s in sequences], pad_token), device)
    if rest.shape[1] == 0:
        return torch.index_select(last, 0, owner)
    cache = DynamicCache()  # the keys and values of each sequence's prompt
    for place, layer in enumerate(read.past_key_values.layers):
        cache.update(layer.keys.index_select(0, owner), layer.values.index_select(0, owner), place)
    then = backbone(
        input_ids=rest,
        attention_mask=_mask(lengths[owner], tokens.shape[1], rest.shape[1], last.dtype),
        position_ids=lengths[owner, None] + torch.arange(rest.shape[1], device=device),
        use_cache=True,
        past_key_values=cache,
    )
    hidden = torch.cat([last.index_select(0, owner)[:, None], then.last_hidden_state], dim=1)
    predicting = [place * hidden.shape[1] + np.arange(len(s.rollout.tokens)) for place, s in enumerate(sequences)]
    return hidden.flatten(0, 1).index_select(0, to_device(np.concatenate(predicting), device))


class _Row:
    """A row that segments are appended to."""

    def __init__(self) -> None:
        self.tokens, self.positions, self.segments = list[IntArray](), list[IntArray](), list[packing.Segment]()
        self._end = 0

    def append(self, tokens: IntArray, prompt: packing.Segment | None = None) -> packing.Segment:
        """Append a segment. Its positions continue those of its prompt."""
        start, self._end = self._end, self._end + len(tokens)
        seen = (start, start) if prompt is None else (prompt.start, prompt.end)
        segment = packing.Segment(start, self._end, *seen)
        self.tokens.append(tokens)
        self.positions.append(seen[1] - seen[0] + np.arange(len(tokens)))
        self.segments += [segment] if len(tokens) else []
        return segment


def _packed(backbone: nn.Module, sequences: Sequence[AnySequence]) -> Tensor:
    device, row = next(backbone.parameters()).device, _Row()
    prompts, predicting = dict[int, packing.Segment](), list[IntArray]()
    for prompt, completion in ((sequence.prompt, sequence.rollout.tokens) for sequence in sequences):
        if id(prompt) not in prompts:
            prompts[id(prompt)] = row.append(prompt.tokens)
        segment = row.append(completion[:-1], prompts[id(prompt)])
        places = np.concatenate([[segment.prompt_end - 1], np.arange(segment.start, segment.end)])
        predicting.append(places[: len(completion)])
    tokens, positions, selected = (
        to_device(np.concatenate(parts), device) for parts in (row.tokens, row.positions, predicting)
    )
    heads = backbone.config.get_text_config().num_attention_heads  # type: ignore[union-attr, operator]
    hidden = packing.read(backbone, tokens, positions, packing.Packing.of(row.segments, device, heads))
    return hidden.index_select(0, selected)


def _mask(lengths: Tensor, prompt: int, completion: int, dtype: torch.dtype) -> Tensor:
    """[R, 1, L, P + L], 0 where a completion token attends: to its prompt's real tokens, and its completion up to
    itself.
    """
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
