"""The native engine's memory parts, for the device plan."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from winnow.engines.forward_memory import USE_NATIVE, fewer_at_once, forward_parts
from winnow.engines.native.cache_size import KVCacheSpec, round_columns
from winnow.engines.native.cuda_graphs import padded
from winnow.engines.native.packed_weights import packed_bytes, packs
from winnow.memory import footprint
from winnow.memory.demand import Demand
from winnow.memory.plan import MemoryPart
from winnow.models.meta import weight_bytes

UNPACKED = ("set rollout.engine.packed = false",)


def parts(demand: Demand) -> Iterator[MemoryPart]:
    """Its cache holds every prompt once, is kept between requests, and grows to the largest of each kind."""
    model, options, device, remedy = demand.model, demand.options, demand.device, fewer_at_once(demand)
    dtype = model.dtype if options["dtype"] == "policy" else getattr(torch, options["dtype"])
    if options["dtype"] != "policy":
        yield MemoryPart("engine's copy", weight_bytes(model, dtype), "always", device, USE_NATIVE)
    if options["packed"] and packs(device, dtype):
        yield MemoryPart("packed weights", packed_bytes(model, dtype), "generate", device, UNPACKED)
    rows, blocks = max(at_once for _, at_once in demand.requests), _blocks(demand)
    prompt, columns = demand.prompt_tokens, demand.config.rollout.max_new_tokens
    if device.startswith("cuda") and options["graphs"]:
        prompt, columns, blocks = round_columns(prompt), round_columns(columns), padded(blocks, 2 * blocks)
        logits = rows * footprint.head(model).shape[0] * dtype.itemsize
        yield MemoryPart("recorded logits", logits, "always", device)
    per_token = KVCacheSpec.of(model, dtype).bytes_per_token
    cache, most = (blocks * prompt + rows * columns) * per_token, options["key_value_mb"] * 2**20
    yield MemoryPart("keys and values", min(cache, most) if most else cache, "always", device, remedy)
    prefilled = blocks * prompt * per_token  # as the model returns them, before they are copied into the cache
    yield MemoryPart("prompts' keys and values", prefilled, "generate", device, remedy)
    yield from forward_parts(demand, read=blocks * prompt, rows=rows)


def _blocks(demand: Demand) -> int:
    """Prompt blocks in use at once; under unequal counts a prompt with more rollouts than others has several."""
    most = demand.config.rollout.max_rollouts_at_once
    blocks = max(min(most, prompts) for prompts, _ in demand.requests)
    return blocks if demand.config.allocate.label == "uniform" else min(most, 2 * blocks)
