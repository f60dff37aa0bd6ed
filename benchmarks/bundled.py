"""The workload of most benchmarks: the bundled policy on the default task's held-out prompts."""

from __future__ import annotations

from winnow.engines.base import EngineContext
from winnow.models.load import load
from winnow.records import Prompt
from winnow.tasks.arithmetic import arithmetic
from winnow.tasks.templates import render


def bundled(
    prompts: int, *, at_once: int, dtype: str = "float32", model: str = "bundled"
) -> tuple[EngineContext, list[Prompt]]:
    """An engine's context for `at_once` concurrent rollouts, and the first `prompts` prompts; or of another model."""
    loaded = load(model, dtype=dtype)
    rendered = render(arithmetic("validation")[:prompts], loaded.tokenizer, template="chat", max_prompt_tokens=512)
    context = EngineContext(
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        stop_tokens=loaded.stop_tokens,
        max_rollouts_at_once=at_once,
    )
    return context, rendered.prompts
