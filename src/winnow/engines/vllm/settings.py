"""vLLM's settings and limits that are known without importing vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from winnow.errors import ConfigError, conflict

DTYPES = ("float32", "bfloat16")
CPU_KEY_VALUE_GIB = 2.0
LEAST_TEMPERATURE = 0.01  # vLLM raises a lower one to it
SeedPer = Literal["rollout", "request"]
LORA_RANKS = (8, 16, 32, 64, 128, 256)  # the ranks with kernels in vLLM


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """Options of the engine `vllm`; see docs/engines.md."""

    tensor_parallel: int = 1
    gpu_memory_utilization: float = 0.5
    key_value_gib: float | None = None
    compiled: bool = True
    sleep: bool = False
    seed_per: SeedPer = "rollout"


def serves_adapter(lora: str, dtype: str, *, sharded: bool = False) -> bool:
    """Whether an adapter is applied beside the base, instead of merged into it.

    With "auto" it is applied beside the base if no rank has the whole base, and in bfloat16: a merge into 8
    significant bits would lose most of a small adapter's change.
    """
    return lora == "adapter" or (lora == "auto" and (dtype == "bfloat16" or sharded))


def sleep_unsupported() -> ConfigError:
    """The error for `sleep` on a CPU."""
    return conflict(
        "rollout.engine.sleep: vLLM cannot sleep on a CPU, because it cannot release the machine's memory",
        remedy="remove it",
        key="rollout.engine.sleep",
    )


def kernel_rank(rank: int) -> int:
    """The smallest rank with kernels in vLLM that is at least `rank`. Raises ConfigError above the largest."""
    if rank > LORA_RANKS[-1]:
        raise conflict(
            f"model.lora.rank = {rank}: vLLM applies adapters up to rank {LORA_RANKS[-1]}",
            remedy="lower the rank, choose the engine 'native', or, on a base of float32, set rollout.engine.lora = "
            "'merged'",
            key="model.lora.rank",
        )
    return next(known for known in LORA_RANKS if known >= rank)
