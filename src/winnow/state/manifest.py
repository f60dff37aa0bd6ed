"""What a run was made of: enough to tell why two runs of one configuration could differ."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path
from typing import Any

from winnow.config import Config, dump

PACKAGES = ("winnow-rl", "torch", "transformers", "tokenizers", "peft", "numpy", "safetensors", "vllm")


def describe_run(config: Config, *, base: Path, device: str, threads: int) -> dict[str, Any]:
    """The resolved configuration, the folder its files are relative to, the versions of everything that computes, and
    the machine, as JSON.
    """
    return {
        "config": dump(config),
        "base": str(base.resolve()),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "device": device,
        "threads": threads,
        "platform": platform.platform(),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
