"""The baselines of the engine benchmarks: transformers' `generate` and its continuous batching."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import transformers
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from winnow.engines.hf_generate import left_pad
from winnow.records import Prompt

PAGE = 32  # tokens; a prompt's full pages are shared by its rollouts
PATIENCE = 120.0  # seconds without a finished rollout


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """A sampling task: `rollouts` per prompt, up to `max_new_tokens` or a stop token."""

    model: Any
    prompts: Sequence[Prompt]
    rollouts: int  # per prompt
    max_new_tokens: int
    stop_tokens: tuple[int, ...]  # none: every rollout gets max_new_tokens


def generate(work: Work, seed: int) -> int:
    """Sample as a user of transformers would. Returns the number of tokens."""
    torch.manual_seed(seed)
    pad = work.stop_tokens[0] if work.stop_tokens else 0
    tokens, real = left_pad([prompt.tokens for prompt in work.prompts], pad=pad, device=work.model.device)
    settings = _settings(work, eos_token_id=list(work.stop_tokens) or None, pad_token_id=pad)
    out = work.model.generate(input_ids=tokens, attention_mask=real, generation_config=settings)
    completions = out[:, tokens.shape[1] :]
    ends = torch.isin(completions, torch.tensor(work.stop_tokens, dtype=torch.int64, device=out.device))
    return int(torch.where(ends.any(1), ends.int().argmax(1) + 1, ends.shape[1]).sum())


def generate_batch(work: Work, seed: int, *, cuda_graphs: bool = False) -> int:
    """Sample all rollouts with continuous batching and log-probs. Returns the number of tokens.

    Keys and values are paged, prefixes are shared, and finished rollouts are removed. It does the same as transformers'
    `generate_batch`, which in older versions returns only one rollout per prompt.
    Raises RuntimeError if a rollout failed, which transformers would only log.
    """
    settings = _settings(work, eos_token_id=list(work.stop_tokens) or -1, pad_token_id=0)
    batching = work.model.continuous_batching_context_manager(
        generation_config=settings, continuous_batching_config=_batching(work, seed, cuda_graphs), timeout=5
    )
    with _paged_attention(work.model), batching as manager:
        manager.add_requests([prompt.tokens.tolist() for prompt in work.prompts], max_new_tokens=work.max_new_tokens)
        return sum(len(rollout.generated_tokens) for rollout in _finished(manager, len(work.prompts) * work.rollouts))


def _settings(work: Work, **tokens: Any) -> Any:
    counts = {"max_new_tokens": work.max_new_tokens, "num_return_sequences": work.rollouts}
    return transformers.GenerationConfig(do_sample=True, top_k=0, **counts, **tokens)


def _finished(manager: Any, number: int) -> Iterator[Any]:
    """Yield rollouts in the order in which they finish."""
    heard = time.perf_counter()
    while number:
        rollout = manager.get_result(timeout=1)
        if rollout is None and (not manager.is_running() or time.perf_counter() - heard > PATIENCE):
            raise RuntimeError(f"continuous batching ended or stood still with {number} rollouts missing")
        if rollout is not None and rollout.error is not None:
            raise RuntimeError(f"continuous batching failed: {rollout.error}")
        if rollout is not None and rollout.is_finished():
            number, heard = number - 1, time.perf_counter()
            yield rollout


def _batching(work: Work, seed: int, cuda_graphs: bool) -> ContinuousBatchingConfig:
    """Configure memory for all rollouts at once, and all prompts in one pass; the default is all free memory."""
    longest = max(len(prompt.tokens) for prompt in work.prompts)
    at_once = len(work.prompts) * work.rollouts
    newer = {"page_size": PAGE, "auto_switch_to_flash": _has_flash()} if _switches_itself() else {"block_size": PAGE}
    return ContinuousBatchingConfig(
        **newer,
        num_blocks=at_once * -(-(longest + work.max_new_tokens + 1) // PAGE) + 1,
        max_batch_tokens=max(256, at_once + sum(len(prompt.tokens) for prompt in work.prompts)),
        use_cuda_graph=cuda_graphs,
        return_logprobs=True,
        seed=seed,
    )


@contextlib.contextmanager
def _paged_attention(model: Any) -> Iterator[None]:
    """Set the attention kernel. Without it, older versions of transformers look for flash attention on the hub, which
    fails without a network.
    """
    if _switches_itself():
        yield
        return
    before = model.config._attn_implementation
    model.set_attn_implementation("paged|flash_attention_2" if _has_flash() else "paged|sdpa")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _switches_itself() -> bool:
    return any(field.name == "auto_switch_to_flash" for field in dataclasses.fields(ContinuousBatchingConfig))


def _has_flash() -> bool:
    return torch.cuda.is_available() and importlib.util.find_spec("flash_attn") is not None
