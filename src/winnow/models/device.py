"""The device of the policy."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn import Module, Parameter

from winnow.errors import ConfigError


def resolve_device(name: str) -> torch.device:
    """The device named "cpu" or "cuda"; "auto" selects CUDA where it exists, else the CPU.

    Raises ConfigError where the device does not exist, and for "mps": tokens are drawn from cumulative sums in float64,
    which it does not support.
    """
    present = {"cuda": torch.cuda.is_available(), "cpu": True}
    if name == "mps":
        raise ConfigError(
            "device: 'mps' has no float64, in which winnow draws tokens",
            remedy="use 'cpu' on this machine",
            key="device",
            code="config.unsupported",
        )
    if name == "auto":
        return torch.device(next(kind for kind, exists in present.items() if exists))
    if not present.get(name, False):
        usable = ", ".join(repr(kind) for kind, exists in present.items() if exists)
        raise ConfigError(
            f"device: {name!r} is not available on this machine",
            remedy=f"use 'auto' or one of {usable}",
            key="device",
            code="config.unsupported",
        )
    return torch.device(name)


def planned_device(name: str) -> torch.device:
    """The device that a run would use. "cuda" is accepted where this machine has no GPU.

    Raises ConfigError for "mps".
    """
    return torch.device("cuda") if name == "cuda" else resolve_device(name)


def side_stream(device: torch.device) -> AbstractContextManager[object]:
    """A context for another thread: its work on a device runs after the work that this thread has submitted so far.

    It neither waits for this thread's later work nor delays it.
    """
    if device.type != "cuda":
        return contextlib.nullcontext()
    stream = _second_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(stream)


@functools.cache  # torch keeps a stream's freed memory for that stream, so all saves share one
def _second_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def on_host(module: Module) -> Module:
    """A copy of a module in host memory, made without a temporary copy on the module's device."""
    known: dict[int, Any] = {id(buffer): buffer.to("cpu", copy=True) for buffer in module.buffers()}
    for parameter in module.parameters():
        known[id(parameter)] = Parameter(parameter.detach().to("cpu", copy=True), parameter.requires_grad)
    return copy.deepcopy(module, known)


def describe_gpu(device: torch.device) -> dict[str, str | int | None]:
    """Properties that the bits of a result depend on besides torch's version; empty for a CPU.

    They are the GPU's name, and the versions of its driver, of CUDA and of cuDNN.
    """
    if device.type != "cuda":
        return {}
    return {
        "name": torch.cuda.get_device_name(device),
        "driver": driver_version(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
    }


def driver_version(library: str = "libnvidia-ml.so.1") -> str | None:
    """Version of NVIDIA's driver, from the driver's library; None where that cannot be loaded or queried."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return None
    text = ctypes.create_string_buffer(80)
    if nvml.nvmlInit_v2() != 0 or nvml.nvmlSystemGetDriverVersion(text, ctypes.c_uint(len(text))) != 0:
        return None
    return text.value.decode()
