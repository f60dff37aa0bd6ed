"""How vLLM is started in a process that has other work to do."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed

from winnow import ranks
from winnow.engines.vllm.served import Served
from winnow.engines.vllm.settings import CPU_KEY_VALUE_GIB, VllmSettings, kernel_rank, no_sleep

TRANSFER_BACKEND = "winnow"  # the name under which weight_transfer.py registers its backend in vLLM
LOG_LEVEL = "VLLM_LOGGING_LEVEL"
CPU_TOKENS_AT_ONCE = 4096  # vLLM's own default


def start(served: Served, settings: VllmSettings) -> Any:
    """A `vllm.LLM` with random weights, ready for its first weights. Raises ConfigError for what the CPU lacks."""
    with _environment(), _own_threads(), ranks_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's imports and compilers warn of what its users cannot change
        from vllm import LLM
        from vllm.platforms import current_platform

        limits: dict[str, Any] = {}
        if current_platform.is_cpu():
            settings, limits = _on_cpu(settings, served)
        llm = LLM(
            model=str(served.folder),
            skip_tokenizer_init=True,  # tokens go in and tokens come out
            load_format="dummy",
            generation_config="vllm",  # a model's own sampling defaults would alter the distribution
            dtype=served.dtype,
            max_model_len=served.context_tokens,
            max_num_seqs=served.max_rollouts_at_once,
            tensor_parallel_size=settings.tensor_parallel,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            kv_cache_memory_bytes=_bytes(settings.key_value_gib),
            enforce_eager=not settings.compiled,
            enable_sleep_mode=settings.sleep,
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",  # of the distribution sampled from
            weight_transfer_config={"backend": TRANSFER_BACKEND},
            worker_extension_cls="winnow.engines.vllm.weight_transfer.WorkerExtension",
            disable_log_stats=True,
            **_lora(served),
            **_among_ranks(),
            **limits,
        )
        llm.init_weight_transfer_engine({"init_info": {}})
    return llm


def _on_cpu(settings: VllmSettings, served: Served) -> tuple[VllmSettings, dict[str, Any]]:
    """A bound on memory, as vLLM would take half of the machine; and no prompt read in pieces, as vLLM then takes back
    random numbers, which a generator of the CPU cannot do.
    """
    if settings.sleep:
        raise no_sleep()
    at_once = max(CPU_TOKENS_AT_ONCE, served.context_tokens, served.max_rollouts_at_once)
    bounded = settings if settings.key_value_gib else replace(settings, key_value_gib=CPU_KEY_VALUE_GIB)
    return bounded, {"enable_chunked_prefill": False, "max_num_batched_tokens": at_once}


def _lora(served: Served) -> dict[str, Any]:
    if served.adapter is None:
        return {}
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": kernel_rank(served.adapter["r"])}


def _among_ranks() -> dict[str, Any]:
    """In the process of one of several ranks vLLM finds a world of all of them, in which its one worker must know its
    place, and its device; it computes alone all the same.
    """
    return {"distributed_executor_backend": "external_launcher"} if ranks.count() > 1 else {}


@contextmanager
def ranks_kept() -> Iterator[None]:
    """With itself vLLM ends torch's default process group, which among several ranks is theirs, and not its own."""
    distributed: Any = torch.distributed
    destroy = distributed.destroy_process_group

    def but_the_default(group: Any = None) -> None:
        if group is not None:
            destroy(group)

    if ranks.count() > 1:
        distributed.destroy_process_group = but_the_default
    try:
        yield
    finally:
        distributed.destroy_process_group = destroy


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else int(gib * 2**30)


@contextmanager
def _environment() -> Iterator[None]:
    """One process, so that weights are passed by reference and no process is left behind; and, unless the
    user sets another level, only vLLM's errors are logged.
    """
    values = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", LOG_LEVEL: os.environ.get(LOG_LEVEL, "ERROR")}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _own_threads() -> Iterator[None]:
    """On a CPU vLLM sets the threads of the whole process, and replaces torch's function so that nobody else can."""
    threads, setter = torch.get_num_threads(), torch.set_num_threads
    try:
        yield
    finally:
        torch.set_num_threads = setter
        setter(threads)
