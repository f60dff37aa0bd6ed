"""The policy's device, the precision in which it computes and keeps weights, and torch's global settings for both."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from winnow.config import Config, TrainedCritic
from winnow.errors import unsupported

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # an environment variable that cuBLAS reads at its first use
FIXED = (":4096:8", ":16:8")  # values under which cuBLAS sums in a fixed order, the faster first
_AS_ON_GPU = ContextVar("_AS_ON_GPU", default=False)


def resolve_device(name: str) -> torch.device:
    """The device named "cpu" or "cuda"; "auto" selects CUDA where it exists, else the CPU.

    Raises ConfigError if the device does not exist. "mps" is none: tokens are drawn from cumulative sums in float64,
    which it does not support.
    """
    present = {"cuda": torch.cuda.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, exists in present.items() if exists))
    if not present.get(name, False):
        usable = ", ".join(repr(kind) for kind, exists in present.items() if exists)
        raise unsupported(
            f"device: {name!r} is not available on this machine", remedy=f"use 'auto' or one of {usable}", key="device"
        )
    return torch.device(name)


def planned_device(name: str) -> torch.device:
    """The device that a run would use. "cuda" is accepted where this machine has no GPU."""
    return torch.device("cuda") if name == "cuda" else resolve_device(name)


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array on a device, in its own precision. The host does not wait for the device's earlier work, as it would
    for a copy from memory that is not pinned. On a CPU the array's memory is used.
    """
    tensor = torch.from_numpy(array)
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def is_cpu(device: torch.device) -> bool:
    """Whether operations that are faster on a CPU are used. They may take other memory, and may read tensors of the
    host, which on a GPU would be a fault or a wait.
    """
    return device.type == "cpu" and not _AS_ON_GPU.get()


@contextmanager
def as_on_gpu() -> Iterator[None]:
    """A context in which the choices for a CPU are not made, so that a CPU runs the operations of a GPU."""
    token = _AS_ON_GPU.set(True)
    try:
        yield
    finally:
        _AS_ON_GPU.reset(token)


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


def keeps_masters(config: Config) -> bool:
    """Whether float32 masters of the weights are trained. An adapter is float32 on a 16-bit base, and needs none."""
    return config.model.dtype == "bfloat16" and config.model.lora is None and config.optimizer.master_weights


def keeps_value_masters(config: Config) -> bool:
    """Whether float32 masters of a value model are trained, for 16-bit weights.

    The weights are the value model's own, or the policy's that its head is trained with. The float32 head then has a
    master too.
    """
    critic = config.critic
    if critic is not None and critic.policy_head == "trained":
        return keeps_masters(config)
    if not isinstance(critic, TrainedCritic) or critic.policy_head is not None:
        return False
    return config.model.dtype == "bfloat16" and critic.lora is None and critic.optimizer.master_weights


def set_matrix_products(*, tf32: bool) -> None:
    """Set whether float32 matrix products on a GPU may use TF32; on a CPU it has no effect.

    torch's default is false for matrix products and true for convolutions, and a program that calls winnow may have
    changed either.
    """
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32


def set_deterministic(device: torch.device, *, deterministic: bool) -> None:
    """Set whether the same numbers on the same GPU, driver and versions give the same bits. On a CPU they always do.

    Like `set_matrix_products`, this overrides what a program that calls winnow has set in torch.

    torch then selects kernels that add in a fixed order, and raises RuntimeError where it has none. Among them is
    attention: torch's flash and memory-efficient kernels have a repeatable backward, and torch excludes cuDNN's. Raises
    ConfigError where cuBLAS can no longer be configured.
    """
    if device.type != "cuda":
        return
    if deterministic:
        # CUDA may have started without cuBLAS: to choose a precision for "auto", or the device of a rank
        _fix_workspace(any(map(torch.cuda.memory_reserved, range(torch.cuda.device_count()))))
        torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = deterministic


@contextmanager
def distinct_places() -> Iterator[None]:
    """A context for writing to a tensor at distinct places, which is repeatable anyway.

    torch cannot detect that. Under `set_deterministic` it would sort the places and write the whole tensor again.
    """
    if not torch.are_deterministic_algorithms_enabled():
        yield
        return
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=warn_only)


def describe_precision(config: Config, device: str) -> str:
    """Description of the precision of computation, weights and sums, for people."""
    dtype, few = config.model.dtype, config.optimizer.moments == "8bit"
    base = "" if config.model.quantization is None else " on a base of 4 bits (nf4)"
    tf32 = f" with TF32 {'on' if config.model.tf32 else 'off'}" if device.startswith("cuda") else ""
    if dtype != "bfloat16":
        return f"{dtype}{tf32 if dtype == 'float32' else ''}{base}{'; moments in 8 bits' if few else ''}"
    if config.model.lora is not None:
        return f"bfloat16{base}, the adapter in float32{tf32}{', its moments in 8 bits' if few else ''}"
    masters = f"float32 masters{' with an offset' if config.optimizer.master_offset else ''}"
    kept = masters if config.optimizer.master_weights else "stochastic rounding"
    return f"bfloat16, {kept}; gradients{' in float32, moments in 8 bits' if few else ' and moments in float32'}"


def _fix_workspace(cuda_is_used: bool) -> None:
    """Configure cuBLAS to sum in a fixed order.

    Raises ConfigError if the environment has another value. It also raises where the value is not set and
    `cuda_is_used`: cuBLAS may have read it already.
    """
    chosen = os.environ.get(WORKSPACE)
    if chosen not in FIXED and (chosen is not None or cuda_is_used):
        why = "is not set, and CUDA is already in use in this process" if chosen is None else f"is {chosen!r}"
        raise unsupported(
            f"deterministic = true: the environment variable {WORKSPACE} {why}, so matrix products need not repeat",
            remedy=f"start Python with {WORKSPACE}={FIXED[0]}, or call winnow before anything else uses the GPU",
            key="deterministic",
        )
    os.environ.setdefault(WORKSPACE, FIXED[0])
