"""The memory of the measuring process: the current use, the peak, and a limit.

Only memory allocated after the creation of `DeviceMemory` counts: weights, moments, gradients, activations, keys and
values. Python, its packages and mapped files do not count. On CUDA torch counts its allocations. On a CPU, Linux counts
the peak resident size (VmHWM), which can be reset; on other systems there is no such count.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

import torch

from winnow.errors import ConfigError
from winnow.memory.usage import process_memory, reset_peak

OUT_OF_MEMORY = (  # in messages of torch, its libraries, numpy and the C++ runtime
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "out of memory",
    "unable to allocate",
    "bad_alloc",
)
NO_STACK = "can't start new thread"  # under a limit, because its stack does not fit


def check_limit(device: torch.device, limit: int | None) -> None:
    """Raise ConfigError if a limit cannot be set."""
    if limit is not None and device.type == "cpu" and sys.platform != "linux":
        raise ConfigError(
            "a memory limit on a CPU needs Linux: other systems neither count nor limit it",
            remedy="omit the limit",
            code="config.unsupported",
        )


class DeviceMemory:
    """Counts the memory that this process allocates on a device after the creation of this object."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cpu":
            torch.ones(2**20).sum()  # starts torch's threads, whose stacks are no part of the model
        self._before = process_memory() if device.type == "cpu" else {}

    def limit(self, size: int | None) -> None:
        """Make allocations beyond `size` bytes fail with MemoryError or torch's error; current use counts."""
        if size is not None and self._device.type == "cuda":
            total = torch.cuda.mem_get_info(self._device)[1]
            torch.cuda.set_per_process_memory_fraction(min(1.0, size / total), self._device)
        elif size is not None and self._before:
            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            resource.setrlimit(resource.RLIMIT_DATA, (self._before["VmData"] + size, hard))

    def copy_weights(self, model: torch.nn.Module) -> None:
        """Copy the weights into memory of this process, because mapped files are not counted."""
        if self._device.type == "cpu":
            for parameter in model.parameters():
                parameter.data = parameter.data.clone()

    def begin(self) -> int | None:
        """Return the bytes in use, and reset the peak."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return torch.cuda.memory_allocated(self._device)
        reset_peak()
        numbers = process_memory()
        return numbers["RssAnon"] - self._before["RssAnon"] if numbers else None

    def peak(self) -> int | None:
        """The most bytes in use since `begin`."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        numbers = process_memory()
        return numbers["VmHWM"] - numbers["RssFile"] - self._before["RssAnon"] if numbers else None


def lift_limit() -> None:
    """Remove the limit after an error, so that there is memory to report it."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def is_out_of_memory(error: BaseException, *, limited: bool) -> bool:
    """Return whether an error means that memory ran out; `limited`: whether a limit was set."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or mentions_out_of_memory(
        str(error), limited=limited
    )


def mentions_out_of_memory(text: str, *, limited: bool) -> bool:
    """Return whether a message means that memory ran out; `limited`: whether a limit was set."""
    lower = text.lower()
    return any(words in lower for words in OUT_OF_MEMORY) or (limited and NO_STACK in lower)


def prefer_for_oom_kill() -> None:
    """On Linux: if the machine runs out of memory, the kernel kills this process first."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
