"""Implementation of the engine `hf`: the `generate` of transformers, on a copy of the policy.

Prompts of unequal length are padded on the left into one batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from winnow.engines.base import EngineContext, OnRollout, PendingRollout
from winnow.engines.freshness import check_newer
from winnow.engines.policy_copy import TOLERANCES, PolicyCopy
from winnow.engines.requests import SamplingRequest, waves
from winnow.engines.sampling import choose, to_host, uniforms
from winnow.engines.stopping import StopRule, stop_rules
from winnow.records import FloatArray, Group, IntArray, Prompt, Sampling
from winnow.seeds import SeedName


def left_pad(texts: Sequence[IntArray], *, pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pad to the longest length P: tokens [R, P], and a mask [R, P] (int64) with 0 for padding and 1 elsewhere."""
    width = max(map(len, texts))
    tokens = np.full((len(texts), width), pad, dtype=np.int64)
    real = np.zeros((len(texts), width), dtype=np.int64)
    for row, text in enumerate(texts):
        tokens[row, width - len(text) :] = text
        real[row, width - len(text) :] = 1
    return torch.from_numpy(tokens).to(device), torch.from_numpy(real).to(device)


class HuggingFace:
    """See `hf`. It always samples from a copy of the weights, so it also tests their transfer. `native` has a copy only
    with a `dtype` of its own or a sharded policy.
    """

    def __init__(self, context: EngineContext) -> None:
        self.version = 0
        self._copy = PolicyCopy(context.copy_model())
        self._model = self._copy.model
        self.logprob_tolerance = TOLERANCES[self._model.dtype]
        self._model.generation_config = GenerationConfig()  # the model's defaults would alter the distribution
        self._at_once = context.max_rollouts_at_once
        vocabulary = context.model.config.get_text_config().vocab_size
        self._rule = stop_rules(context.tokenizer, context.stop_tokens, vocabulary)

    def generate(
        self,
        prompts: Sequence[Prompt],
        counts: Sequence[int],
        sampling: Sampling,
        *,
        seed: tuple[SeedName, ...],
        on_rollout: OnRollout | None = None,
    ) -> list[Group]:
        """See `Engine`."""
        rule = self._rule(sampling.stop)
        with SamplingRequest(prompts, counts, rule=rule, version=self.version, on_rollout=on_rollout) as request:
            for wave in waves(request.rollouts, self._at_once):
                self._generate(wave, request, rule, sampling, seed)
        return request.groups()

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy weights by name; every trained parameter must be among them."""
        check_newer(version, than=self.version)
        self._copy.load(weights)
        self.version = version

    def close(self) -> None:
        """See `Engine`; does nothing, because the memory is freed with this object."""

    def _generate(
        self,
        wave: list[PendingRollout],
        request: SamplingRequest,
        rule: StopRule,
        sampling: Sampling,
        seed: tuple[SeedName, ...],
    ) -> None:
        pad = rule.tokens[0] if rule.tokens else 0
        tokens, real = left_pad([pending.prompt.tokens for pending in wave], pad=pad, device=self._model.device)
        draw = _Draw(uniforms(seed, wave, sampling.max_new_tokens), sampling, start=tokens.shape[1])
        self._model.generate(
            input_ids=tokens,
            attention_mask=real,
            generation_config=GenerationConfig(
                do_sample=False,  # `_Draw` has sampled the token and masks all others, so greedy selects it
                max_new_tokens=sampling.max_new_tokens,
                eos_token_id=list(rule.tokens) or None,
                pad_token_id=pad,
            ),
            logits_processor=LogitsProcessorList([draw]),
            stopping_criteria=StoppingCriteriaList([_Finish(wave, request, rule, draw, sampling.max_new_tokens)]),
        )


class _Draw(LogitsProcessor):  # type: ignore[misc]  # transformers is untyped here
    """Samples the next token of every row with the row's uniform, and masks all other tokens."""

    def __init__(self, numbers: FloatArray, sampling: Sampling, start: int) -> None:
        self.start = start
        self.logprobs = torch.zeros(numbers.shape, dtype=torch.float64)
        self._uniforms = torch.from_numpy(numbers)
        self._sampling = sampling

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        column = input_ids.shape[1] - self.start
        token, logprob = choose(scores, self._uniforms[:, column].to(scores.device), self._sampling)
        self.logprobs[:, column] = torch.from_numpy(to_host(token, logprob)[1])
        return torch.full_like(scores, -torch.inf).scatter(1, token[:, None], 0.0)


class _Finish(StoppingCriteria):  # type: ignore[misc]
    """Finishes the rollout of a row when it ends; the returned mask makes transformers stop that row."""

    def __init__(
        self, wave: list[PendingRollout], request: SamplingRequest, rule: StopRule, draw: _Draw, limit: int
    ) -> None:
        self._wave, self._request, self._rule, self._draw, self._limit = wave, request, rule, draw, limit
        self._ended = torch.zeros(len(wave), dtype=torch.bool)

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        tokens = input_ids[:, self._draw.start :].numpy(force=True)
        length = tokens.shape[1]
        for row in (~self._ended).nonzero()[:, 0].tolist():
            if length == self._limit or self._rule.ends(tokens[row]):
                self._ended[row] = True
                logprobs = self._draw.logprobs[row, :length].numpy().copy()
                self._request.finish(self._wave[row], tokens[row].copy(), logprobs)
        return self._ended.to(input_ids.device)
