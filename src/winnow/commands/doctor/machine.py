"""System, processor, memory, disk space and CUDA devices of this machine. Each probe returns plain data for JSON."""

from __future__ import annotations

import csv
import os
import platform
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from winnow import version
from winnow.control_groups import ROOT, cpu_quota

# Flags of /proc/cpuinfo by which torch and winnow choose how to multiply matrices. avx512_bf16, amx_bf16 and bf16
# (ARM) multiply bfloat16.
INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "asimd", "sve", "bf16")
BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def of_winnow() -> dict[str, Any]:
    """The version, and in a checkout its commit."""
    source = Path(version.__file__).resolve().parents[2]
    return {"version": version.__version__, "commit": commit(source) if (source / ".git").exists() else None}


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


FIELDS = ("index", "name", "memory.total", "memory.free", "compute_cap", "driver_version")
QUERY = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]


def of_cuda() -> dict[str, Any]:
    """The cards of this machine, and the number of them that torch can use."""
    import torch

    available = torch.cuda.is_available()
    return {
        "built_for": built_for(torch.version.cuda, getattr(torch.version, "hip", None)),
        "available": available,
        "visible": torch.cuda.device_count(),
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if available else None,  # type: ignore[no-untyped-call]
        "cards": cards(_query_output()),
    }


def built_for(cuda: str | None, rocm: str | None) -> str | None:
    """ "CUDA 12.8", "ROCm 6.4"; None for a build for CPUs."""
    return f"CUDA {cuda}" if cuda else f"ROCm {rocm}" if rocm else None


def _query_output() -> str:
    """The output of nvidia-smi; empty where it is missing or fails."""
    try:
        return subprocess.run(QUERY, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def cards(output: str) -> list[dict[str, Any]]:
    """The cards in the output of `QUERY`. A number that the driver does not report ("[N/A]") is None."""
    rows = [[cell.strip() for cell in row] for row in csv.reader(output.splitlines())]
    return [_card(dict(zip(FIELDS, row, strict=True))) for row in rows if len(row) == len(FIELDS)]


def _card(row: dict[str, str]) -> dict[str, Any]:
    capability = _number(row["compute_cap"])
    return {
        "index": int(row["index"]) if row["index"].isdecimal() else None,
        "name": row["name"],
        "bytes": _bytes(row["memory.total"]),
        "free_bytes": _bytes(row["memory.free"]),
        "compute_capability": row["compute_cap"],
        "bfloat16": None if capability is None else capability >= 8.0,  # from Ampere on
        "driver": row["driver_version"],
    }


def _bytes(mebibytes: str) -> int | None:
    number = _number(mebibytes)
    return None if number is None else round(number * 2**20)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
