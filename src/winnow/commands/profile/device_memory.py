"""The memory of the process that measures: what its model holds, the most that it held, and a limit on it.

Counted is what came after the object was made: weights, moments, gradients, activations, keys and values, as on a card,
and neither Python nor its packages. On CUDA torch counts what it has allocated. On a CPU Linux counts the most that was
ever resident (VmHWM), which can be set back; elsewhere nobody does. Files that are mapped are left out.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

import torch

from winnow.errors import ConfigError
from winnow.memory.usage import of_process, set_back_peak

OUT_OF_MEMORY = (  # as torch, its libraries, numpy and the C++ runtime say it
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "out of memory",
    "unable to allocate",
    "bad_alloc",
)
NO_STACK = "can't start new thread"  # under a limit: there is no room for its stack


def check_limit(device: torch.device, limit: int | None) -> None:
    """Raise ConfigError where a limit cannot be set."""
    if limit is not None and device.type == "cpu" and sys.platform != "linux":
        raise ConfigError(
            "a memory limit on a CPU needs Linux, which alone counts and bounds it",
            remedy="omit the limit",
            code="config.unsupported",
        )


class DeviceMemory:
    """What this process has taken on a device since it began to count."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cpu":
            torch.ones(2**20).sum()  # starts torch's threads, whose stacks are no part of the model
        self._before = of_process() if device.type == "cpu" else {}

    def limit(self, size: int | None) -> None:
        """What would now take more ends in MemoryError, or in an error of torch's; what is held counts."""
        if size is not None and self._device.type == "cuda":
            total = torch.cuda.mem_get_info(self._device)[1]
            torch.cuda.set_per_process_memory_fraction(min(1.0, size / total), self._device)
        elif size is not None and self._before:
            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            resource.setrlimit(resource.RLIMIT_DATA, (self._before["VmData"] + size, hard))

    def own(self, model: torch.nn.Module) -> None:
        """Have the weights in memory of this process: those that are mapped from their file would not be counted."""
        if self._device.type == "cpu":
            for parameter in model.parameters():
                parameter.data = parameter.data.clone()

    def begin(self) -> int | None:
        """Bytes held; the peak counts from here."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return torch.cuda.memory_allocated(self._device)
        set_back_peak()
        numbers = of_process()
        return numbers["RssAnon"] - self._before["RssAnon"] if numbers else None

    def peak(self) -> int | None:
        """The most bytes since `begin`, what was held included."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        numbers = of_process()
        return numbers["VmHWM"] - numbers["RssFile"] - self._before["RssAnon"] if numbers else None


def lift_limit() -> None:
    """After an error, so that it can be told."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def ran_out(error: BaseException, *, limited: bool) -> bool:
    """Whether an error is of memory that was not there."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or says_out_of_memory(str(error), limited=limited)


def says_out_of_memory(text: str, *, limited: bool) -> bool:
    """Whether a message is of memory; `limited` says that there was a limit on it."""
    said = text.lower()
    return any(words in said for words in OUT_OF_MEMORY) or (limited and NO_STACK in said)


def end_first() -> None:
    """On Linux: where the machine's memory ends, this process is the one to be killed."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
