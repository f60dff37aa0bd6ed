"""The registration of the native engine, which by default decodes on the policy's module, without a copy of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from winnow.config import Config
from winnow.engines.base import Engine, EngineContext
from winnow.errors import ConfigError
from winnow.memory.demand import Demand
from winnow.registry import register

if TYPE_CHECKING:
    from winnow.memory.plan import MemoryPart


def fits(config: Config) -> None:
    """Raise ConfigError for a copy in another precision of a quantized base."""
    dtype = config.rollout.engine.options.get("dtype", "policy")
    if dtype != "policy" and config.model.quantization is not None:
        raise ConfigError(
            f"rollout.engine.dtype = {dtype!r} under model.quantization = {config.model.quantization!r}: a base of 4 "
            f"bits has no copy in another precision",
            remedy="remove rollout.engine.dtype",
            key="rollout.engine.dtype",
            code="config.combination",
        )


def job(demand: Demand) -> str:
    from winnow.engines.native.memory import evaluates_exactly, rounds

    shared = demand.options["dtype"] == "policy" and not demand.sharded
    weights = "the policy's own weights" if shared else "a copy of the weights"
    if rounds(demand):
        weights += f" in {demand.options['dtype']}"
        weights += ", for evaluations with the policy's own" if evaluates_exactly(demand) else ", for evaluations too"
    return f"native samples on {demand.device} with {weights}"


def memory(demand: Demand) -> Iterable[MemoryPart]:
    from winnow.engines.native.memory import parts

    return parts(demand)


@register("engine", fits=fits, memory=memory, job=job, may_change=("key_value_mb",))
def native(
    context: EngineContext,
    *,
    dtype: Literal["policy", "bfloat16", "float16"] = "policy",
    key_value_mb: Annotated[int, Field(ge=0)] = 0,
    graphs: bool = True,
    packed: bool = True,
) -> Engine:
    """Fast decoding on the policy's module: a prompt is read once for all its rollouts, and free rows are refilled.

    A `dtype` other than "policy" decodes on a copy of the weights in that precision. `key_value_mb` limits the memory
    of keys and values (0: the memory that the rest of the run leaves). `graphs` replays CUDA graphs on a GPU.
    `packed` multiplies by packed copies of the weights while rollouts are sampled on a CPU.
    """
    from winnow.engines.native.sampler import Native

    return Native(context, dtype=dtype, key_value_mb=key_value_mb, graphs=graphs, packed=packed)
