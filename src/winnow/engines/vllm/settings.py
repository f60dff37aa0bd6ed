"""vLLM's settings, limits and memory parts that are known without importing vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from winnow.errors import ConfigError
from winnow.memory.demand import Demand
from winnow.memory.footprint import parameter_bytes
from winnow.memory.plan import MemoryPart, Phase
from winnow.memory.usage import capacity
from winnow.models.meta import weight_bytes

DTYPES = ("float32", "bfloat16")
CPU_KEY_VALUE_GIB = 2.0
LORA_RANKS = (8, 16, 32, 64, 128, 256)  # the ranks with kernels in vLLM


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """Options of the engine `vllm`; see docs/engines.md."""

    tensor_parallel: int = 1
    gpu_memory_utilization: float = 0.5
    key_value_gib: float | None = None
    compiled: bool = True
    sleep: bool = False


def serves_adapter(lora: str, dtype: str, *, sharded: bool = False) -> bool:
    """Whether an adapter is applied beside the base, instead of merged into it.

    With "auto" it is applied beside the base where no rank has the whole base, and in bfloat16: a merge into 8
    significant bits would lose most of a small adapter's change.
    """
    return lora == "adapter" or (lora == "auto" and (dtype == "bfloat16" or sharded))


def sleep_unsupported() -> ConfigError:
    """The error for `sleep` on a CPU."""
    return ConfigError(
        "rollout.engine.sleep: vLLM cannot sleep on a CPU, because it cannot release the machine's memory",
        remedy="remove it",
        key="rollout.engine.sleep",
        code="config.combination",
    )


def kernel_rank(rank: int) -> int:
    """The smallest rank with kernels in vLLM that is at least `rank`. Raises ConfigError above the largest."""
    if rank > LORA_RANKS[-1]:
        raise ConfigError(
            f"model.lora.rank = {rank}: vLLM applies adapters up to rank {LORA_RANKS[-1]}",
            remedy="lower the rank, choose the engine 'native', or, on a base of float32, set rollout.engine.lora = "
            "'merged'",
            key="model.lora.rank",
            code="config.combination",
        )
    return next(known for known in LORA_RANKS if known >= rank)


def parts(demand: Demand) -> Iterator[MemoryPart]:
    """The memory of vLLM on each of its devices: a share of the device for weights, keys and values together, or, with
    `key_value_gib` and on a CPU, the weights plus a fixed size for keys and values. Weights are sent to it one by one.
    """
    options, packed = demand.options, demand.config.model.quantization is not None
    weights = parameter_bytes(demand.model) if packed else weight_bytes(demand.model)  # vLLM's are never quantized
    for device in _devices(_first_device(demand), options["tensor_parallel"]):
        yield from _on_device(demand, device, weights)
    if demand.config.model.lora is not None and not serves_adapter(options["lora"], demand.config.model.dtype):
        yield MemoryPart("merged weights", weights, "generate", demand.device)
    if packed:  # all dequantized weights exist at once while they are sent
        yield MemoryPart("weights of 4 bits as plain ones", weights, "generate", demand.device)


def _on_device(demand: Demand, device: str, weights: int) -> Iterator[MemoryPart]:
    options = demand.options
    phase: Phase = "generate" if options["sleep"] else "always"
    cache = options["key_value_gib"] or (CPU_KEY_VALUE_GIB if device == "cpu" else None)
    if cache is None:
        share = options["gpu_memory_utilization"] * (demand.device_bytes or capacity(torch.device(device)) or 0)
        yield MemoryPart("vLLM", round(share), phase, device, ("lower rollout.engine.gpu_memory_utilization",))
    else:
        remedy = ("lower rollout.engine.key_value_gib",)
        yield MemoryPart("vLLM's weights", weights // options["tensor_parallel"], phase, device)
        yield MemoryPart("vLLM's keys and values", round(cache * 2**30), phase, device, remedy)


def _first_device(demand: Demand) -> str:
    return demand.options["device"] or demand.device


def _devices(first: str, count: int) -> list[str]:
    """ "cuda:1" and the devices after it; on a CPU, the same device `count` times."""
    kind, _, index = first.partition(":")
    return [first] * count if count == 1 or kind == "cpu" else [f"{kind}:{int(index or 0) + i}" for i in range(count)]
