"""System, processor, memory and free disk space of this machine. Each probe returns plain data for JSON."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import winnow
from winnow.control_groups import ROOT, cpu_quota
from winnow.version import __version__

# Flags of /proc/cpuinfo by which torch and winnow choose how to multiply matrices. avx512_bf16, amx_bf16 and bf16
# (ARM) multiply bfloat16.
INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "asimd", "sve", "bf16")
BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def of_winnow() -> dict[str, Any]:
    """The version, and in a checkout its commit."""
    source = Path(winnow.__file__).resolve().parents[2]
    return {"version": __version__, "commit": commit(source) if (source / ".git").exists() else None}


def commit(checkout: Path) -> str | None:
    """ "1a2b3c4d", or "1a2b3c4d, changed" where tracked files differ from it; None where git fails."""
    git = ["git", "-C", str(checkout)]
    try:
        head = _output([*git, "rev-parse", "--short=12", "HEAD"])
        changed = _output([*git, "status", "--porcelain", "--untracked-files=no"])
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{head.strip()}, changed" if changed.strip() else head.strip()


def of_system() -> dict[str, Any]:
    """The operating system and this Python."""
    name = platform.platform()
    with suppress(OSError):
        name = f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {name}"
    in_venv = sys.prefix != sys.base_prefix
    return {"os": name, "python": platform.python_version(), "executable": sys.executable, "virtual_env": in_venv}


def of_processor(info: Path = Path("/proc/cpuinfo"), groups: Path = ROOT) -> dict[str, Any]:
    """Name, cores and instructions of the processor; "usable" is the number of cores that affinity and a control group
    allow.
    """
    text = info.read_text(encoding="utf-8", errors="replace") if info.exists() else ""
    cores, quota = os.cpu_count() or 1, cpu_quota(groups)
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    flags = set(text.split())
    return {
        "model": _model(text) or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "cores": cores,
        "usable": affinity if quota is None else min(float(affinity), quota),
        "quota": quota,
        "instructions": [flag for flag in INSTRUCTIONS if flag in flags],
        "bfloat16": bool(BFLOAT16 & flags),
    }


def _model(cpuinfo: str) -> str:
    lines = (line.split(":", 1) for line in cpuinfo.splitlines() if ":" in line)
    return next((value.strip() for name, value in lines if name.strip() in ("model name", "Model")), "")


def of_memory() -> dict[str, Any]:
    """Total and free bytes of the host's memory, within a control group's limit."""
    import torch

    from winnow.memory.usage import capacity, free_bytes

    host = torch.device("cpu")
    return {"bytes": capacity(host), "free_bytes": free_bytes(host)}


def of_disks() -> dict[str, Any]:
    """Free bytes in the working directory (for runs), the cache of models, and the folder of temporary files."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    cache = os.environ.get("HF_HUB_CACHE") or home
    places = {"working_directory": ".", "huggingface_cache": cache, "temporary": os.environ.get("TMPDIR") or "/tmp"}
    return {name: free_space(Path(path).expanduser()) for name, path in places.items()}


def free_space(path: Path) -> dict[str, Any]:
    """Free bytes of the folder, or of the nearest existing folder above it."""
    existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    return {"path": str(path.absolute()), "free_bytes": shutil.disk_usage(existing).free}


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout
