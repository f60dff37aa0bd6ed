"""The published model with rollouts of its recipe's task, and the numbers that transformers alone computes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from winnow.engines.base import Engine, EngineContext
from winnow.errors import DataError
from winnow.learner.learner import logprobs
from winnow.learner.policy import Policy
from winnow.models.folder import PUBLISHED, settings_folder
from winnow.models.load import DTYPES, Loaded
from winnow.records import FloatArray, Prompt, Sampling, TrainingSequence
from winnow.tasks.arithmetic import arithmetic
from winnow.tasks.templates import render

SYSTEM = "Answer with one number and nothing else."  # of the recipe
PROMPTS, ROLLOUTS, NEW_TOKENS = 4, 4, 24


def published_folder() -> Path:
    """The model's folder; the test is skipped if it is absent."""
    try:
        return settings_folder(PUBLISHED)
    except DataError as error:
        pytest.skip(f"the published model is not here: {error.remedy}")


def context(loaded: Loaded) -> EngineContext:
    """What an engine gets of the model."""
    return EngineContext(
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        stop_tokens=loaded.stop_tokens,
        max_rollouts_at_once=64,
        context_tokens=128,
    )


def prompts(tokenizer: Any, count: int = PROMPTS, system: str | None = SYSTEM) -> list[Prompt]:
    """The first held-out prompts of the recipe."""
    problems = arithmetic("test", levels=(1, 2), size=count)
    return render(problems, tokenizer, template="chat", system=system, max_prompt_tokens=128).prompts


def sample(engine: Engine, asked: Sequence[Prompt], rollouts: int = ROLLOUTS) -> list[TrainingSequence]:
    """Rollouts of every prompt, each of weight 1."""
    sampling = Sampling(max_new_tokens=NEW_TOKENS)
    groups = engine.generate(asked, [rollouts] * len(asked), sampling, seed=("published",))
    return [
        TrainingSequence(prompt=group.prompt, rollout=rollout, group=place, advantage=1.0, weight=1.0)
        for place, group in enumerate(groups)
        for rollout in group.rollouts
    ]


def policy(loaded: Loaded, **options: Any) -> Policy:
    """The policy as a run makes it."""
    options = {"tokens_per_micro_batch": 1024, **options}
    return Policy(loaded.model, temperature=1.0, pad_token=loaded.tokenizer.eos_token_id, **options)


def plain_model(folder: Path, dtype: str = "float32") -> nn.Module:
    """The model as transformers loads it, with a gradient for the token that is also its padding."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype]).eval()
    model.get_input_embeddings().padding_idx = None
    return model


def plain_logprobs(model: nn.Module, row: TrainingSequence) -> Tensor:
    """[L] float32 log-probs of one rollout's tokens: one sequence, not padded."""
    tokens = torch.from_numpy(np.concatenate([row.prompt.tokens, row.rollout.tokens]))
    logits = model(input_ids=tokens[None]).logits[0, len(row.prompt.tokens) - 1 : -1].float()
    return logits.log_softmax(-1).gather(-1, tokens[len(row.prompt.tokens) :, None])[:, 0]


def plain(model: nn.Module, rows: Sequence[TrainingSequence]) -> FloatArray:
    """`plain_logprobs` of all rollouts, joined."""
    with torch.no_grad():
        return torch.cat([plain_logprobs(model, row) for row in rows]).double().numpy()


def learned(policy: Policy, rows: Sequence[TrainingSequence]) -> FloatArray:
    """The learner's log-probs of all rollouts, joined, from its micro-batches."""
    (found,) = logprobs(policy, [rows])
    return np.concatenate([found[row.key] for row in rows])


def engine_logprobs(rows: Sequence[TrainingSequence]) -> FloatArray:
    """The log-probs that the engine logged, joined."""
    return np.concatenate([row.rollout.logprobs for row in rows])
