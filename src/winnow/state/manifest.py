"""What a run was made of, as manifest.json in its folder: enough to tell why two runs of one configuration differ."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from winnow.config import Config, dump
from winnow.errors import RunFolderError

MANIFEST = "manifest.json"
FORMAT = 1
PACKAGES = ("winnow-rl", "torch", "transformers", "tokenizers", "peft", "numpy", "safetensors", "vllm", "bitsandbytes")


def describe_run(
    config: Config,
    *,
    base: Path,
    device: str,
    threads: int,
    inputs: Mapping[str, Mapping[str, str]],
    packages: Sequence[str] = (),
    gpu: Mapping[str, Any] | None = None,
    ranks: int = 1,
) -> dict[str, Any]:
    """The resolved configuration, the folder its files are relative to, digests of the files it reads by key, the
    versions of everything that computes, and the machine, as JSON. `packages` brought members of the run; `gpu` is the
    policy's device where that is one, with what drives it. `ranks` compute the run together.
    """
    return {
        "config": dump(config),
        "base": str(base.resolve()),
        "inputs": dict(inputs),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in (*PACKAGES, *packages)}},
        "device": device,
        "threads": threads,
        "ranks": ranks,
        "platform": platform.platform(),
        **({"gpu": dict(gpu)} if gpu else {}),
    }


def parse(text: bytes, path: Path) -> dict[str, Any] | None:
    """The manifest in the bytes of the file `path`; None where they are no manifest of winnow's.

    Raises RunFolderError for one of a later format, which this version may misread.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or "winnow_run" not in data:
        return None
    if data["winnow_run"] not in range(1, FORMAT + 1):
        raise RunFolderError(
            f"{path} is of format {data['winnow_run']!r}, and this winnow reads {FORMAT} at most",
            remedy="use the version that wrote it, or a later one",
            code="run_folder.unreadable",
        )
    return data


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
