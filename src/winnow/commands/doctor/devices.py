"""CUDA devices according to the driver and to torch. No context is created: it would use hundreds of megabytes."""

from __future__ import annotations

import csv
import os
import subprocess
from typing import Any

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
