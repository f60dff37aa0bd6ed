"""The registration of the native engine, which by default decodes on the policy's module, without a copy of it.

With `process = "own"` it decodes in another process on the CPU, on a copy of the policy.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

from winnow import ranks
from winnow.bounds import AtLeastOne, Natural, Positive
from winnow.config import Config
from winnow.engines.base import Engine, EngineContext
from winnow.errors import conflict
from winnow.memory.demand import Demand
from winnow.registry import register

if TYPE_CHECKING:
    from winnow.memory.plan import MemoryPart


def fits(config: Config) -> None:
    """Raise ConfigError for a copy in another precision of a quantized base, and for a policy that has no copy in
    another process.
    """
    if config.rollout.engine.options.get("process", "inside") == "own":
        check_own_process(config)
    dtype = config.rollout.engine.options.get("dtype", "policy")
    if dtype != "policy" and config.model.quantization is not None:
        raise conflict(
            f"rollout.engine.dtype = {dtype!r} under model.quantization = {config.model.quantization!r}: a base of 4 "
            f"bits has no copy in another precision",
            remedy="remove rollout.engine.dtype",
            key="rollout.engine.dtype",
        )


def check_own_process(config: Config) -> None:
    """Raise ConfigError for settings under which the policy has no exact copy in another process."""
    from winnow.models.device import planned_device

    dtype, lora = config.rollout.engine.options.get("dtype", "policy"), config.model.lora
    quantization, on_gpu = config.model.quantization, planned_device(config.device).type == "cuda"
    sharded = config.ranks.learner == "sharded" and ranks.launched_count() > 1
    unmerged = lora is not None and (config.model.dtype == "bfloat16" or sharded)
    rank = f"rank {lora.rank}" if lora is not None else ""
    merged = (
        "the adapter is merged into the weights that are sent: bfloat16 would round it, and no sharded rank has all"
    )
    for refused, key, value, why, remedy in (
        (on_gpu, "device", config.device, "that process samples on the CPU", "use the engine 'vllm'"),
        (dtype != "policy", "rollout.engine.dtype", dtype, "evaluations would sample with a rounded copy", "remove it"),
        (quantization is not None, "model.quantization", quantization, "a base of 4 bits is not sent", "remove it"),
        (unmerged, "model.lora", rank, merged, "remove rollout.engine.process"),
    ):
        if refused:
            raise conflict(
                f"rollout.engine.process = 'own' with {key} = {value!r}: {why}",
                remedy=remedy,
                key="rollout.engine.process",
            )


def ahead(config: Config) -> None:
    """Raise ConfigError if it decodes on the policy's own weights, which an update changes."""
    if config.rollout.engine.options.get("process", "inside") != "own":
        raise conflict(
            "rollout.ahead = 1 with rollout.engine = 'native' in the trainer's process: it shares device and weights "
            "with the policy, whose updates would change them while it samples",
            remedy="on a CPU set rollout.engine = { use = 'native', process = 'own' }; on two GPUs use 'vllm' on the "
            "second",
            key="rollout.ahead",
        )


def job(demand: Demand) -> str:
    from winnow.engines.native.memory import evaluates_exactly, rounds

    if demand.options["process"] == "own":
        return f"native samples on {demand.device} in a process of its own with a copy of the weights"

    shared = demand.options["dtype"] == "policy" and not demand.sharded
    weights = "the policy's own weights" if shared else "a copy of the weights"
    if rounds(demand):
        weights += f" in {demand.options['dtype']}"
        weights += ", for evaluations with the policy's own" if evaluates_exactly(demand) else ", for evaluations too"
    return f"native samples on {demand.device} with {weights}"


def memory(demand: Demand) -> Iterable[MemoryPart]:
    from winnow.engines.native.memory import parts

    return parts(demand)


@register(
    "engine",
    fits=fits,
    memory=memory,
    job=job,
    may_change=("key_value_mb", "timeout_seconds", "start_seconds"),
    ahead=ahead,
)
def native(
    context: EngineContext,
    *,
    process: Literal["inside", "own"] = "inside",
    threads: AtLeastOne = 1,
    dtype: Literal["policy", "bfloat16", "float16"] = "policy",
    key_value_mb: Natural = 0,
    graphs: bool = True,
    packed: bool = True,
    timeout_seconds: Positive = 600.0,
    start_seconds: Positive = 600.0,
) -> Engine:
    """Fast decoding on the policy's module: a prompt is read once for all its rollouts, and free rows are refilled.

    A `dtype` other than "policy" decodes on a copy of the weights in that precision. `key_value_mb` limits the memory
    of keys and values (0: the memory that the rest of the run leaves). `graphs` replays CUDA graphs on a GPU.
    `packed` multiplies by packed copies of the weights while rollouts are sampled on a CPU. With `process = "own"` it
    decodes in a separate process with `threads` threads, on a copy that it receives after each step.
    """
    if process == "inside":
        from winnow.engines.native.sampler import Native

        return Native(context, dtype=dtype, key_value_mb=key_value_mb, graphs=graphs, packed=packed)
    from winnow.engines.process.engine import SecondProcess
    from winnow.engines.served import ServerEngine, describe

    with TemporaryDirectory(prefix="winnow-native-") as folder:  # read at the start only
        server = SecondProcess(
            "winnow.engines.native.own_process:NativeServer",
            {
                "served": describe(context, Path(folder)),
                "options": {"key_value_mb": key_value_mb, "packed": packed},
                "threads": threads,
                "cache_bytes": context.cache_bytes,
            },
            timeout_seconds=timeout_seconds,
            start_seconds=start_seconds,
            environment={"OMP_NUM_THREADS": str(threads)},
        )
    return ServerEngine(server, context.model, adapter=False, saved=context.saved)
