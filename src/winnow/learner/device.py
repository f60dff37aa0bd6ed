"""Where the policy lives."""

from __future__ import annotations

import torch

from winnow.errors import ConfigError


def resolve_device(name: str) -> torch.device:
    """The device called "cpu", "cuda" or "mps"; "auto" takes CUDA, else MPS, else the CPU.

    Raises ConfigError when the device asked for is not there.
    """
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, there in present.items() if there))
    if not present.get(name, False):
        usable = ", ".join(repr(kind) for kind, there in present.items() if there)
        raise ConfigError(f"device: {name!r} is not available on this machine; use 'auto' or one of {usable}")
    return torch.device(name)
