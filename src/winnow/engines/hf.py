"""The reference engine: the `generate` of transformers, on a copy of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from winnow.engines.base import Engine, EngineContext
from winnow.memory.demand import Demand
from winnow.registry import register

if TYPE_CHECKING:
    from winnow.memory.plan import MemoryPart


def memory(demand: Demand) -> Iterator[MemoryPart]:
    """A copy of the weights, and a key and value cache that repeats the prompt for every rollout."""
    from winnow.engines.policy_copy import USE_NATIVE, USE_VLLM, KVCacheSpec, fewer_at_once, forward_parts
    from winnow.memory.plan import MemoryPart
    from winnow.models.meta import weight_bytes

    model, device = demand.model, demand.device
    remedies = USE_VLLM if demand.sharded else USE_NATIVE
    yield MemoryPart("engine's copy", weight_bytes(model), "always", device, remedies)
    rows = max(at_once for _, at_once in demand.requests)
    longest, environment = demand.config.rollout.max_new_tokens, demand.config.environment
    tokens = rows * (demand.prompt_tokens + longest)
    # A later turn reads the conversation so far, after which there is room for that turn
    earlier = 0 if environment is None else max(0, longest - environment.max_turn_tokens)
    cache = tokens * KVCacheSpec.of(model).bytes_per_token
    yield MemoryPart("keys and values", cache, "generate", device, fewer_at_once(demand))
    yield from forward_parts(demand, read=rows * (demand.prompt_tokens + earlier), rows=rows)


def job(demand: Demand) -> str:
    return f"hf samples on {demand.device} with a copy of the weights"


@register("engine", memory=memory, job=job)
def hf(context: EngineContext) -> Engine:
    """Plain `model.generate` on a copy of the policy: slow, and the reference that `native` is tested against."""
    from winnow.engines.hf_generate import HuggingFace

    return HuggingFace(context)
