"""How vLLM serves, and what is known of it before it is started."""

from __future__ import annotations

from dataclasses import dataclass

from winnow.errors import ConfigError

DTYPES = ("float32", "bfloat16")
CPU_KEY_VALUE_GIB = 2.0
LORA_RANKS = (8, 16, 32, 64, 128, 256)  # that vLLM has kernels for


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """How vLLM serves; see docs/engines.md."""

    tensor_parallel: int = 1
    gpu_memory_utilization: float = 0.5
    key_value_gib: float | None = None
    compiled: bool = True
    sleep: bool = False


def beside(lora: str, dtype: str, *, sharded: bool = False) -> bool:
    """Whether an adapter is applied beside the base, instead of merged into it. By "auto" it is where merging would
    round: in bfloat16, of 8 significant bits, most of what a small adapter changes is lost; and where no rank has the
    whole base.
    """
    return lora == "adapter" or (lora == "auto" and (dtype == "bfloat16" or sharded))


def no_sleep() -> ConfigError:
    """The error of a `sleep` on a CPU."""
    return ConfigError(
        "rollout.engine.sleep: vLLM cannot sleep on a CPU, whose memory is the machine's",
        remedy="remove it",
        key="rollout.engine.sleep",
        code="config.combination",
    )


def kernel_rank(rank: int) -> int:
    """The smallest that vLLM has kernels for and an adapter of `rank` fits in. Raises ConfigError above the largest."""
    if rank > LORA_RANKS[-1]:
        raise ConfigError(
            f"model.lora.rank = {rank}: vLLM applies adapters up to rank {LORA_RANKS[-1]}",
            remedy="lower the rank, choose the engine 'native', or, on a base of float32, set rollout.engine.lora = "
            "'merged'",
            key="model.lora.rank",
            code="config.combination",
        )
    return next(known for known in LORA_RANKS if known >= rank)
