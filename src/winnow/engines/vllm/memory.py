"""vLLM's memory parts, for the device plan, without importing vLLM."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from winnow.engines.vllm.settings import CPU_KEY_VALUE_GIB, serves_adapter
from winnow.errors import unsupported
from winnow.memory.demand import Demand
from winnow.memory.footprint import parameter_bytes, written_bytes
from winnow.memory.plan import MemoryPart, Phase
from winnow.memory.usage import capacity
from winnow.models.meta import weight_bytes


def parts(demand: Demand) -> Iterator[MemoryPart]:
    """The memory of vLLM on each of its devices: a share of the device for weights, keys and values together, or, with
    `key_value_gib` and on a CPU, the weights plus a fixed size for keys and values. Weights are sent to it one by one.
    """
    options, packed = demand.options, demand.config.model.quantization is not None
    heads = demand.model.config.get_text_config().num_attention_heads
    if heads % options["tensor_parallel"]:
        raise unsupported(
            f"rollout.engine.tensor_parallel = {options['tensor_parallel']}: vLLM gives each device as many attention "
            f"heads, and this model has {heads}",
            remedy="choose a divisor of their number",
            key="rollout.engine.tensor_parallel",
        )
    weights = parameter_bytes(demand.model) if packed else weight_bytes(demand.model)  # vLLM's are never quantized
    phase: Phase = "generate" if options["sleep"] else "always"
    for device in _devices(options["device"] or demand.device, options["tensor_parallel"]):
        if cache := options["key_value_gib"] or (CPU_KEY_VALUE_GIB if device == "cpu" else None):
            remedy = ("lower rollout.engine.key_value_gib",)
            yield MemoryPart("vLLM's weights", weights // options["tensor_parallel"], phase, device)
            yield MemoryPart("vLLM's keys and values", round(cache * 2**30), phase, device, remedy)
        else:
            share = options["gpu_memory_utilization"] * (demand.device_bytes or capacity(torch.device(device)) or 0)
            yield MemoryPart("vLLM", round(share), phase, device, ("lower rollout.engine.gpu_memory_utilization",))
    if options["sleep"]:  # vLLM copies them to pinned memory, which torch keeps
        yield MemoryPart("vLLM's weights asleep", weights, "always", "cpu", ("remove rollout.engine.sleep",))
    lora, dtype = demand.config.model.lora, demand.config.model.dtype
    merged = lora is not None and not serves_adapter(options["lora"], dtype, sharded=demand.sharded)
    if merged or packed:  # each is made when it is read
        yield MemoryPart("one weight to send", written_bytes(demand.model), "generate", demand.device)


def _devices(first: str, count: int) -> list[str]:
    """ "cuda:1" and the devices after it; on a CPU, the same device `count` times."""
    kind, _, index = first.partition(":")
    return [first] * count if count == 1 or kind == "cpu" else [f"{kind}:{int(index or 0) + i}" for i in range(count)]
