"""The same policy on a GPU: it samples what it samples on the CPU, says what it said, and learns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import winnow
from winnow.engines.base import Engine, EngineContext
from winnow.engines.native.engine import native
from winnow.learner.old_logprobs import compute_logprobs
from winnow.learner.policy import Policy
from winnow.models.load import Loaded, load
from winnow.records import Batch, Group, Prompt, Rollout, Sampling, TrainingSequence
from winnow.seeds import generator
from winnow.state.logbook import read_metrics
from winnow.tasks.arithmetic import arithmetic
from winnow.tasks.templates import render
from winnow.training.step_metrics import percentile_999

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

DEVICE = "cuda"
SEED = ("gpu",)
SAMPLING = Sampling(max_new_tokens=48)
ROLLOUTS = 32
BOUNDARY = 1e-5  # a uniform this close to a step of the cumulative distribution may fall on either side


def policy(device: str, dtype: str = "float32") -> tuple[Loaded, list[Prompt]]:
    loaded = load("bundled", dtype=dtype, device=device)
    return loaded, render(arithmetic("validation")[:8], loaded.tokenizer, template="chat", max_prompt_tokens=64).prompts


def sample(loaded: Loaded, prompts: Sequence[Prompt], *, at_once: int = 512) -> tuple[Engine, list[Group]]:
    engine = native(
        EngineContext(
            model=loaded.model,
            tokenizer=loaded.tokenizer,
            stop_tokens=loaded.stop_tokens,
            max_rollouts_at_once=at_once,
        )
    )
    return engine, engine.generate(prompts, [ROLLOUTS] * len(prompts), SAMPLING, seed=SEED)


def flat(groups: Sequence[Group]) -> list[tuple[Prompt, Rollout]]:
    return [(group.prompt, rollout) for group in groups for rollout in group.rollouts]


def distance_to_boundary(model: Any, prompt: Prompt, rollout: Rollout, column: int) -> float:
    """Between the uniform that drew this token and the nearest step of the distribution that it was drawn from."""
    before = np.concatenate([prompt.tokens, rollout.tokens[:column]])
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(before)[None]).logits[0, -1]
    steps = logits.double().softmax(-1).cumsum(-1).numpy()
    uniform = generator(*SEED, prompt.id, rollout.index).random(SAMPLING.max_new_tokens)[column]
    return float(np.abs(steps - uniform).min())


@pytest.mark.parametrize("at_once", [512, 37])
def test_native_draws_the_same_tokens_as_on_the_cpu(at_once: int) -> None:
    on_cpu, prompts = policy("cpu")
    _, expected = sample(on_cpu, prompts)
    _, found = sample(policy(DEVICE)[0], prompts, at_once=at_once)
    differing = 0
    for (prompt, one), (_, other) in zip(flat(expected), flat(found), strict=True):
        length = min(len(one.tokens), len(other.tokens))
        unequal = np.flatnonzero(one.tokens[:length] != other.tokens[:length])
        if len(unequal):
            differing += 1
            assert distance_to_boundary(on_cpu.model, prompt, one, int(unequal[0])) < BOUNDARY
        else:
            assert len(one.tokens) == len(other.tokens)
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)
    assert differing <= 2, f"{differing} of {len(flat(expected))} rollouts differ"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_native_reports_the_log_probs_of_the_policy(dtype: str) -> None:
    loaded, prompts = policy(DEVICE, dtype)
    engine, groups = sample(loaded, prompts)
    rows = tuple(
        TrainingSequence(prompt=prompt, rollout=rollout, group=place // ROLLOUTS, advantage=1.0, weight=1.0)
        for place, (prompt, rollout) in enumerate(flat(groups))
    )
    batch = Batch(epoch=0, sequences=rows)
    learner = Policy(
        loaded.model, temperature=1.0, pad_token=loaded.tokenizer.pad_token_id, tokens_per_micro_batch=4096
    )
    (filled,) = compute_logprobs(learner, [batch], {"old_logprobs"})
    gaps = np.concatenate([np.abs(row.rollout.logprobs - np.asarray(row.old_logprobs)) for row in filled.sequences])
    assert gaps.mean() <= engine.logprob_tolerance.mean
    assert percentile_999(gaps) <= engine.logprob_tolerance.tail
    assert dtype != "float32" or gaps.max() <= 1e-4


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
@pytest.mark.parametrize("arch", ["qwen2", "llama"])
def test_a_training_step_runs(smallest: Callable[..., dict[str, Any]], arch: str, checkpointing: str) -> None:
    config = smallest(arch, device=DEVICE, model={"gradient_checkpointing": checkpointing})
    result = winnow.train(**config)
    steps = [row for row in read_metrics(result.folder) if "policy/grad_norm" in row]
    assert len(steps) == 2
    assert all(np.isfinite(row["policy/grad_norm"]) and row["policy/grad_norm"] > 0 for row in steps)
