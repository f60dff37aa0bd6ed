"""Start of vLLM in a process that has other tasks, without lasting changes to that process."""

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
from winnow.engines.served import Served
from winnow.engines.vllm.settings import CPU_KEY_VALUE_GIB, VllmSettings, kernel_rank, sleep_unsupported

TRANSFER_BACKEND = "winnow"  # name of the backend that worker.py registers in vLLM
LOG_LEVEL = "VLLM_LOGGING_LEVEL"
CPU_TOKENS_AT_ONCE = 4096  # vLLM's own default


def start(served: Served, settings: VllmSettings) -> Any:
    """Start a `vllm.LLM` with random weights. Raises ConfigError for settings that a CPU does not support."""
    with _environment(), _threads_kept(), ranks_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # users cannot act on the warnings of vLLM's imports and compilers
        from vllm import LLM
        from vllm.platforms import current_platform

        # With several ranks, vLLM finds the process group of all. With this executor it uses the rank and device of its
        # process, and each vLLM still computes alone
        executor = {"distributed_executor_backend": "external_launcher"} if ranks.count() > 1 else {}
        limits: dict[str, Any] = {}
        rank = None if served.adapter is None else kernel_rank(served.adapter["r"])
        lora = {} if rank is None else {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank}
        if current_platform.is_cpu():
            if settings.sleep:
                raise sleep_unsupported()
            # vLLM would use half of the machine's memory
            settings = replace(settings, key_value_gib=settings.key_value_gib or CPU_KEY_VALUE_GIB)
            # Prompts are read whole: between pieces, vLLM would rewind random generators, and a CPU's cannot
            at_once = max(CPU_TOKENS_AT_ONCE, served.context_tokens, served.max_rollouts_at_once)
            limits = {"enable_chunked_prefill": False, "max_num_batched_tokens": at_once}
        llm = LLM(
            model=str(served.folder),
            skip_tokenizer_init=True,  # prompts and outputs are tokens
            load_format="dummy",
            generation_config="vllm",  # the model's sampling defaults would alter the distribution
            dtype=served.dtype,
            max_model_len=served.context_tokens,
            max_num_seqs=served.max_rollouts_at_once,
            tensor_parallel_size=settings.tensor_parallel,
            # With a fixed size of the cache, vLLM's only use of the share is to refuse to start where less is free
            gpu_memory_utilization=0.001 if settings.key_value_gib else settings.gpu_memory_utilization,
            kv_cache_memory_bytes=int(settings.key_value_gib * 2**30) if settings.key_value_gib else None,
            enforce_eager=not settings.compiled,
            enable_sleep_mode=settings.sleep,
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",  # of the distribution sampled from
            weight_transfer_config={"backend": TRANSFER_BACKEND},
            worker_extension_cls="winnow.engines.vllm.worker.WorkerExtension",
            disable_log_stats=True,
            **lora,
            **executor,
            **limits,
        )
        llm.init_weight_transfer_engine({"init_info": {}})
    return llm


@contextmanager
def ranks_kept() -> Iterator[None]:
    """Keep torch's default process group, which vLLM would destroy at its end; with several ranks it is the run's."""
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


@contextmanager
def _environment() -> Iterator[None]:
    """Set vLLM's environment variables in this context. vLLM's core then runs in this process, so that weights are
    passed by reference and no process outlives it. vLLM logs only errors, unless the user has set another level.
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
def _threads_kept() -> Iterator[None]:
    """Keep torch's threads: on a CPU, vLLM sets them for the whole process, and replaces torch's function for it."""
    threads, setter = torch.get_num_threads(), torch.set_num_threads
    try:
        yield
    finally:
        torch.set_num_threads = setter
        setter(threads)
