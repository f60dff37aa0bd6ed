"""What the machine can do at best: bytes per second from memory, and operations per second in matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gpu_lab import SECONDS, Lab

PER_RUN = 10  # operations per timed run


def ceilings(lab: Lab) -> dict[str, float]:
    """`bandwidth` in bytes per second, the best of three ways to move memory, and `matmul` in operations per second."""
    large = lab.device.type == "cuda"
    rows = torch.randn(65536 if large else 1024, 16384 if large else 1024, device=lab.device, dtype=lab.dtype)  # 2 GiB
    side = 8192 if large else 256
    a, b = (torch.randn(side, side, device=lab.device, dtype=lab.dtype) for _ in range(2))
    moved = _moves(rows)
    speeds = {name: _speed(lab, name, work, amount) for name, (work, amount) in moved.items()}
    matmul = _speed(lab, "matmul", lambda: a @ b, 2 * side**3)
    return {"bandwidth": max(speeds.values()), "matmul": matmul}


def _moves(rows: torch.Tensor) -> dict[str, tuple[Callable[[], Any], int]]:
    """Work and the bytes that it reads and writes."""
    size = rows.numel() * rows.element_size()
    other, target = torch.ones_like(rows), torch.empty_like(rows)
    vector = torch.ones(rows.shape[1], device=rows.device, dtype=rows.dtype)
    return {
        "copy": (lambda: target.copy_(rows), 2 * size),
        "triad": (lambda: torch.add(rows, other, alpha=3.0, out=target), 3 * size),
        "matrix times vector": (lambda: rows @ vector, size),
    }


def _speed(lab: Lab, name: str, work: Callable[[], Any], amount: int) -> float:
    """Amount per second; 0 where it could not be measured."""

    def run() -> None:
        for _ in range(PER_RUN):
            work()

    measured = lab.measure("ceiling", 1, {"what": name}, run, repeats=5)
    speed = PER_RUN * amount / min(measured["seconds"]) if SECONDS in measured else 0.0
    unit, scale = ("tera_operations", 1e12) if name == "matmul" else ("gigabytes", 1e9)
    lab.record(measured | {f"{unit}_per_second": round(speed / scale, 2)})
    return speed
