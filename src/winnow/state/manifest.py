"""manifest.json of a run: configuration, inputs, versions and machine. They can explain why two runs of the same
configuration differ.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from winnow.config import Config, dump
from winnow.errors import RunFolderError
from winnow.installed import version_of
from winnow.state.disk import opened

MANIFEST = "manifest.json"
FORMAT = 1
PACKAGES = ("winnow-rl", "torch", "transformers", "tokenizers", "peft", "numpy", "safetensors", "vllm", "bitsandbytes")


def describe_run(
    config: Config,
    *,
    base: Path,
    recipe: str | None = None,
    device: str,
    threads: int,
    inputs: Mapping[str, Mapping[str, str]],
    packages: Sequence[str] = (),
    gpu: Mapping[str, Any] | None = None,
    ranks: int = 1,
) -> dict[str, Any]:
    """The manifest as JSON data: the resolved configuration, digests of its files by key, versions, and the machine.

    `base` is the folder that the configuration's files are relative to. The manifest of a `recipe` contains its name
    instead, so that a run resumes unchanged after the package was installed elsewhere. `packages` contain members of
    the run. `gpu` describes the policy's GPU and its driver, if it has one. `ranks` is the number of processes.
    """
    return {
        "config": dump(config),
        **({"base": str(base.resolve())} if recipe is None else {"recipe": recipe}),
        "inputs": dict(inputs),
        "versions": {
            "python": platform.python_version(),
            **{name: version_of(name) for name in (*PACKAGES, *packages)},
        },
        "device": device,
        "threads": threads,
        "ranks": ranks,
        "platform": platform.platform(),
        **({"gpu": dict(gpu)} if gpu else {}),
    }


def read(path: Path) -> tuple[int, bytes]:
    """(uid of the owner, bytes) of a regular file. Raises OSError for any other kind, without waiting for a pipe."""
    with opened(path, os.O_RDONLY) as descriptor, open(descriptor, "rb", closefd=False) as file:
        return os.fstat(descriptor).st_uid, file.read()


def parse(text: bytes, path: Path) -> dict[str, Any] | None:
    """The manifest in the bytes of the file `path`; None where winnow did not write it.

    Raises RunFolderError for a later format, which this version might misread.
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
