"""The registration of the vLLM engine, which samples with vLLM's scheduler and kernels on a copy of the weights.

vLLM starts with random weights. The policy's are sent through vLLM's weight-transfer interface, at the start and after
every update, and every worker records the version that it has copied. vLLM is imported when the engine is made.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from winnow import ranks
from winnow.bounds import AboveZeroToOne, AtLeastOne, Positive
from winnow.config import Config
from winnow.engines.base import Engine, EngineContext
from winnow.engines.vllm.settings import (
    DTYPES,
    LEAST_TEMPERATURE,
    SeedPer,
    VllmSettings,
    kernel_rank,
    serves_adapter,
    sleep_unsupported,
)
from winnow.errors import conflict, unsupported
from winnow.memory.demand import Demand
from winnow.registry import register

if TYPE_CHECKING:
    from winnow.memory.plan import MemoryPart

Cuda = Annotated[str, Field(pattern=r"^cuda(:\d+)?$")]


def fits(config: Config) -> None:
    """Raise ConfigError for settings that vLLM does not support, before anything is loaded."""
    options, lora = config.rollout.engine.options, config.model.lora
    process, device, count = options.get("process", "inside"), options.get("device"), options.get("tensor_parallel", 1)
    check(config.model.dtype, process=process, device=device, tensor_parallel=count)
    check_devices(device, count, beside_trainers=config.device != "cpu")
    for section, value in (("rollout", config.rollout.temperature), ("evaluate", config.evaluate.temperature)):
        if value is not None and value < LEAST_TEMPERATURE:
            raise conflict(
                f"{section}.temperature = {value}: vLLM would sample at {LEAST_TEMPERATURE}",
                remedy="raise it, or choose the engine 'native'",
                key=f"{section}.temperature",
            )
    from winnow.models.device import planned_device  # imports torch, without which engines are listed

    on_cpu = device is None and planned_device(config.device).type == "cpu"
    if options.get("sleep") and on_cpu:
        raise sleep_unsupported()
    if lora is not None:
        how, sharded = options.get("lora", "auto"), config.ranks.learner == "sharded" and ranks.launched_count() > 1
        check_merge(config.model.dtype, how, sharded=sharded)
        if serves_adapter(how, config.model.dtype, sharded=sharded):
            kernel_rank(lora.rank)
            if config.model.dtype == "float32" and not on_cpu:
                other = "choose the engine 'native'" if sharded else "set rollout.engine.lora = 'merged'"
                raise conflict(
                    "model.dtype = 'float32' with an adapter next to its base: on a GPU, vLLM applies adapters in 16 "
                    "bits only",
                    remedy=f"set model.dtype = 'bfloat16', or {other}",
                    key="model.dtype",
                )
    if config.deterministic:
        raise conflict(
            "deterministic = true: the order of vLLM's sums depends on the rollouts that it samples together, so its "
            "results may differ in the last bits",
            remedy="choose the engine 'native' or 'hf'",
            key="deterministic",
        )


def ahead(config: Config) -> None:
    """Raise ConfigError if vLLM shares the trainer's process, or its GPU."""
    options = config.rollout.engine.options
    own = options.get("process", "inside") == "own"
    if own and (config.device == "cpu" or options.get("device") is not None or _cuda_devices() == 0):
        return
    where = "on the policy's GPU" if own else "in the trainer's process"
    raise conflict(
        f"rollout.ahead = 1 with rollout.engine = 'vllm' {where}: sampling and updates would wait for each other there",
        remedy="set rollout.engine.process = 'own' and, with GPUs, rollout.engine.device to one that no trainer uses",
        key="rollout.ahead",
    )


def job(demand: Demand) -> str:
    process = " in a process of its own" if demand.options["process"] == "own" else ""
    return f"vllm samples on {demand.options['device'] or demand.device}{process} with a copy of the weights"


def memory(demand: Demand) -> Iterable[MemoryPart]:
    from winnow.engines.vllm.memory import parts

    return parts(demand)


@register(
    "engine",
    requires="vllm",
    fits=fits,
    memory=memory,
    job=job,
    may_change=("gpu_memory_utilization", "key_value_gib", "timeout_seconds", "start_seconds"),
    ahead=ahead,
)
def vllm(
    context: EngineContext,
    *,
    process: Literal["inside", "own"] = "inside",
    device: Cuda | None = None,
    lora: Literal["auto", "merged", "adapter"] = "auto",
    tensor_parallel: AtLeastOne = 1,
    gpu_memory_utilization: AboveZeroToOne = 0.5,
    key_value_gib: Positive | None = None,
    compiled: bool = True,
    sleep: bool = False,
    seed_per: SeedPer = "rollout",
    timeout_seconds: Positive = 600.0,
    start_seconds: Positive = 600.0,
) -> Engine:
    """vLLM on a copy of the policy, in the trainer's process or, with `process = "own"`, in a separate one."""
    from winnow.engines.process.engine import SecondProcess
    from winnow.engines.served import ServerEngine, describe
    from winnow.engines.vllm.sampler import VllmEngine
    from winnow.models.adapter import has_adapter, plain_model

    settings = VllmSettings(
        tensor_parallel=tensor_parallel,
        gpu_memory_utilization=gpu_memory_utilization,
        key_value_gib=key_value_gib,
        compiled=compiled,
        sleep=sleep,
        seed_per=seed_per,
    )
    dtype, adapted = str(plain_model(context.model).dtype).removeprefix("torch."), has_adapter(context.model)
    check(dtype, process=process, device=device, tensor_parallel=tensor_parallel)
    if adapted:
        check_merge(dtype, lora, sharded=context.sharded)
    adapter = adapted and serves_adapter(lora, dtype, sharded=context.sharded)
    on_cuda = context.device.type == "cuda"
    with TemporaryDirectory(prefix="winnow-vllm-") as folder:  # vLLM reads it only at its start
        served = describe(context, Path(folder), adapter=adapter)
        if process == "inside":
            return ServerEngine(VllmEngine(served, settings), context.model, adapter=adapter, saved=context.saved)
        elsewhere = SecondProcess(
            "winnow.engines.vllm.sampler:VllmEngine",
            {"served": served, "settings": settings},
            timeout_seconds=timeout_seconds,
            start_seconds=start_seconds,
            environment=device_environment(device, tensor_parallel) if on_cuda or device is not None else {},
            readers=tensor_parallel,
            backend="nccl" if on_cuda and device is not None else "gloo",
        )
        return ServerEngine(elsewhere, context.model, adapter=adapter, saved=context.saved)


def check(dtype: str, *, process: str, device: str | None, tensor_parallel: int = 1) -> None:
    """Raise ConfigError for a precision that vLLM does not support, and for devices that it would not use."""
    if device is not None and process == "inside":
        raise conflict(
            f"rollout.engine.device = {device!r}: inside the trainer's process vLLM samples where the policy is",
            remedy="set rollout.engine.process = 'own', or remove the device",
            key="rollout.engine.device",
        )
    if tensor_parallel > 1 and process == "inside":
        raise conflict(
            f"rollout.engine.tensor_parallel = {tensor_parallel}: inside the trainer's process vLLM uses only the "
            f"policy's device",
            remedy="set rollout.engine.process = 'own' and rollout.engine.device",
            key="rollout.engine.tensor_parallel",
        )
    if dtype not in DTYPES:
        raise conflict(
            f"model.dtype = {dtype!r}: vLLM samples in float32 or bfloat16",
            remedy="choose one of them, or the engine 'native'",
            key="model.dtype",
        )


def check_devices(device: str | None, tensor_parallel: int, *, beside_trainers: bool = True) -> None:
    """Raise ConfigError for devices that do not exist or that a trainer uses, unless the trainers use no GPU."""
    trainers = ranks.launched_here()
    if device is None:
        present = _cuda_devices() if tensor_parallel > 1 else 0
        if trainers > 1 and present:
            raise conflict(
                f"rollout.engine.tensor_parallel = {tensor_parallel} on {trainers} ranks without "
                f"rollout.engine.device: the engines of the ranks would share devices",
                remedy=f"set rollout.engine.device = 'cuda:{trainers * beside_trainers}', or remove tensor_parallel",
                key="rollout.engine.tensor_parallel",
            )
        if 0 < present < tensor_parallel:
            raise unsupported(
                f"rollout.engine.tensor_parallel = {tensor_parallel}: the number of CUDA devices here is {present}",
                remedy="lower it to at most that number",
                key="rollout.engine.tensor_parallel",
            )
        return
    if beside_trainers and _index(device) < trainers:  # each trainer of this machine uses the device of its local rank
        raise conflict(
            f"rollout.engine.device = {device!r}: a trainer uses it, and weights are sent from GPU to GPU",
            remedy=f"set it to 'cuda:{trainers}', the first that is free, or remove it to share the trainer's",
            key="rollout.engine.device",
        )
    for rank in range(trainers):
        device_environment(device, tensor_parallel, rank)


def check_merge(dtype: str, lora: str, *, sharded: bool = False) -> None:
    """Raise ConfigError if merging an adapter would round it away, or if no rank has the whole base to merge it
    into.
    """
    if lora == "merged" and sharded:
        raise conflict(
            "rollout.engine.lora = 'merged' with ranks.learner = 'sharded': no rank has the whole base that the "
            "adapter would be added to",
            remedy="remove rollout.engine.lora: the adapter is then applied beside the base",
            key="rollout.engine.lora",
        )
    if lora == "merged" and dtype == "bfloat16":
        raise conflict(
            "rollout.engine.lora = 'merged' under model.dtype = 'bfloat16' would round most of a small adapter away, "
            "and vLLM would sample another policy than the one that is trained",
            remedy="remove it (the adapter is then applied beside the base), or set model.dtype = 'float32'",
            key="rollout.engine.lora",
        )


def device_environment(device: str | None, count: int, rank: int | None = None) -> dict[str, str]:
    """Environment variables that limit the engine of a rank to its `count` CUDA devices.

    The engines of this machine's ranks use consecutive devices from `device` ("cuda:1") on. Without a `device`, the
    engine uses the trainer's. Raises ConfigError if the trainer has too few devices.
    """
    rank = ranks.local_rank() if rank is None else rank
    if device is None and ranks.launched_here() == 1:
        return {}
    first = rank if device is None else _index(device) + rank * count
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = listed.split(",") if listed else [str(i) for i in range(_cuda_devices() or first + count)]
    shown = names[first:][:count]
    if len(shown) < count:
        raise unsupported(
            f"rollout.engine.device = {device!r} with tensor_parallel = {count}: the engine of rank {rank} would start "
            f"at 'cuda:{first}', and its trainer has only {len(names)} devices",
            remedy="choose devices that exist",
            key="rollout.engine.device",
        )
    return {"CUDA_VISIBLE_DEVICES": ",".join(shown)}


def _cuda_devices() -> int:
    """The number of CUDA devices; 0 without CUDA."""
    import torch

    return torch.cuda.device_count()


def _index(device: str | None) -> int:
    return int((device or "").partition(":")[2] or 0)
