"""Where the policy lives."""

from __future__ import annotations

import contextlib
import functools
from contextlib import AbstractContextManager

import torch

from winnow.errors import ConfigError


def resolve_device(name: str) -> torch.device:
    """The device called "cpu" or "cuda"; "auto" takes CUDA, else the CPU.

    Raises ConfigError when the device asked for is not there, and for "mps": tokens are drawn from cumulative sums in
    float64, which it does not have.
    """
    present = {"cuda": torch.cuda.is_available(), "cpu": True}
    if name == "mps":
        raise ConfigError("device: 'mps' has no float64, in which winnow draws tokens; use 'cpu' on this machine")
    if name == "auto":
        return torch.device(next(kind for kind, there in present.items() if there))
    if not present.get(name, False):
        usable = ", ".join(repr(kind) for kind, there in present.items() if there)
        raise ConfigError(f"device: {name!r} is not available on this machine; use 'auto' or one of {usable}")
    return torch.device(name)


def planned_device(name: str) -> torch.device:
    """The device that a run would take, also where "cuda" is asked for and this machine has none. Raises ConfigError
    for "mps".
    """
    return torch.device("cuda") if name == "cuda" else resolve_device(name)


def beside(device: torch.device) -> AbstractContextManager[object]:
    """A context for another thread: its work on a device follows what this thread has asked of the device until now,
    and neither waits for what this thread asks later nor holds it up.
    """
    if device.type != "cuda":
        return contextlib.nullcontext()
    stream = _second_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(stream)


@functools.cache  # memory that a stream has used is kept for that stream: one for all saves
def _second_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
