"""The memory of the native engine for the device plan, and the size of its cache per token and per request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from winnow.engines.native.linear import joined_bytes, packable, packed_bytes
from winnow.engines.policy_copy import USE_NATIVE, USE_VLLM, KVCacheSpec, fewer_at_once, forward_parts
from winnow.errors import ConfigError
from winnow.memory import footprint
from winnow.memory.demand import Demand
from winnow.memory.plan import MemoryPart
from winnow.models.meta import weight_bytes

BLOCK = 64  # tokens per block of keys and values
PIECE = 4096  # most tokens that one forward pass over prompts reads
BOUND = "set rollout.engine.key_value_mb"
UNPACKED = ("set rollout.engine.packed = false",)


def block_width(longest: int, *, fixed: bool) -> int:
    """Tokens per block if no text is longer than `longest`: that length, but at most BLOCK. Recorded steps need
    blocks of one size (`fixed`).
    """
    return BLOCK if fixed else max(1, min(BLOCK, longest))


def round_to_blocks(tokens: int, width: int) -> int:
    """Tokens rounded up to whole blocks: `round_to_blocks(65, 64) == 128`."""
    return -(-tokens // width) * width


def rounds(demand: Demand) -> bool:
    """Whether rollouts are sampled on a copy of the weights in another precision than the trained weights."""
    adapted = demand.config.model.lora is not None  # an adapter is in float32
    return demand.options["dtype"] not in ("policy", "float32" if adapted else demand.config.model.dtype)


def evaluates_exactly(demand: Demand) -> bool:
    """Whether evaluations decode on the policy's module, not the copy; see `winnow.engines.base.evaluating`."""
    return rounds(demand) and demand.exact_evaluation and not demand.sharded


def parts(demand: Demand) -> Iterator[MemoryPart]:
    """The memory of the native engine. Its cache is kept between requests. Without `key_value_mb` it may use all memory
    that the rest of the run leaves.
    """
    model, options, device, remedy = demand.model, demand.options, demand.device, fewer_at_once(demand)
    other = None if options["dtype"] == "policy" else getattr(torch, options["dtype"])
    dtype = other or model.dtype
    if demand.sharded:  # a whole copy, which is gathered again after each update
        yield MemoryPart("decoding copy", weight_bytes(model, other), "always", device, USE_VLLM)
    elif other is not None or options["process"] == "own":
        yield MemoryPart("engine's copy", weight_bytes(model, other), "always", device, USE_NATIVE)
    # Requests by precision. A cache and packed copies exist for one precision at a time, hence the maxima below.
    decoded = [(dtype, demand.requests), *([(model.dtype, demand.evaluations)] if evaluates_exactly(demand) else [])]
    packed = [packed_bytes(model, each) for each, _ in decoded if packable(device, each)]
    if options["packed"] and packed:
        yield MemoryPart("packed weights", max(packed), "generate", device, UNPACKED)
    if device == "cpu" and (joined := max(joined_bytes(model, each) for each, _ in decoded)):
        yield MemoryPart("joined weights", joined, "generate", device)
    rows, prompts = max(at_once for _, at_once in demand.requests), _prompts(demand, demand.requests)
    fixed = device.startswith("cuda") and options["graphs"]
    if fixed:
        logits = rows * footprint.head(model).shape[0] * dtype.itemsize
        yield MemoryPart("recorded logits", logits, "always", device)
    longest = demand.config.rollout.max_new_tokens
    prompt = round_to_blocks(demand.prompt_tokens, block_width(demand.prompt_tokens, fixed=fixed))
    own = round_to_blocks(longest, block_width(longest, fixed=fixed))
    per_token = {each: KVCacheSpec.of(model, each).bytes_per_token for each, _ in decoded}
    cache = max(
        (_prompts(demand, requests) * prompt + max(at_once for _, at_once in requests) * own) * per_token[each]
        for each, requests in decoded
    )
    most, least = options["key_value_mb"] * 2**20, (prompt + own) * max(per_token.values())
    if 0 < most < (prompt + own) * per_token[dtype]:
        raise ConfigError(
            f"rollout.engine.key_value_mb = {options['key_value_mb']}: one rollout of rollout.max_new_tokens = "
            f"{longest} with its prompt takes {-(-(prompt + own) * per_token[dtype] // 2**20)} MB",
            remedy="raise it, or lower rollout.max_new_tokens",
            key="rollout.engine.key_value_mb",
            code="config.memory",
        )
    held, remedies = min(cache, most or cache), (*remedy, BOUND)
    wanted = None if held == cache else cache
    yield MemoryPart("keys and values", held, "always", device, remedies, least, wanted, takes_rest=not most)
    # A preempted rollout is read again together with its prompt, in pieces like a long prompt.
    text = demand.prompt_tokens + longest if rows > 1 else demand.prompt_tokens
    read = min(PIECE, max(prompts * demand.prompt_tokens, text))
    prefilled = max(read, text) * max(per_token.values())  # the model's result, before it is copied to the cache
    yield MemoryPart("prompts' keys and values", prefilled, "generate", device, remedy)
    yield from forward_parts(demand, read=read, rows=rows)


def _prompts(demand: Demand, requests: Sequence[tuple[int, int]]) -> int:
    """Maximum number of prompts in use at once. Under unequal counts, a prompt with more rollouts than average is held
    several times.
    """
    most = demand.config.rollout.max_rollouts_at_once
    prompts = max(min(most, prompts) for prompts, _ in requests)
    return prompts if demand.config.allocate.label == "uniform" else min(most, 2 * prompts)
