"""Memory as it is: what a device has left, and what the phases of a step take."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from winnow.memory.control_groups import control_groups

MIB = 2**20
UNLIMITED = 2**60  # bytes; a control group without a limit reports more


def free_bytes(device: torch.device) -> int | None:
    """Bytes that this process could still take on a device; None where that is not known, or there is no such device.

    On the CPU: what the system calls available, or what the process's control group leaves, whichever is less.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] if _there(device) else None
    return min(
        (free for free in (_available(), *left_in_groups(control_groups("memory"))) if free is not None), default=None
    )


def capacity(device: torch.device) -> int | None:
    """Bytes that a device has in all, or this process's control group where that is less; None where there is none."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1] if _there(device) else None
    return min(
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *limits_of_groups(control_groups("memory")), UNLIMITED
    )


@dataclass
class Gauge:
    """Memory at the end of each phase, of this process and of every CUDA device it has touched, by metric name (MiB).

    Reading takes some 50 microseconds and waits for no kernel. A phase entered twice has the later end and
    the larger peak.
    """

    devices: tuple[int, ...] = field(default_factory=lambda: tuple(_touched()))
    _seen: dict[str, float] = field(default_factory=dict)

    def start(self) -> None:
        """A phase begins."""
        for device in self.devices:
            torch.cuda.reset_peak_memory_stats(device)

    def read(self, phase: str) -> None:
        """A phase is over."""
        for name, held in _held():
            self._seen[f"memory/{phase}/cpu/{name}"] = held / MIB
        for device in self.devices:
            self._read_cuda(f"memory/{phase}/cuda{device}", torch.cuda.memory_stats_as_nested_dict(device))

    def of_engine(self, engine: object) -> None:
        """What an engine last reported of the memory that it holds elsewhere, where it reports any (`by_state`)."""
        reported: Mapping[str, float] = getattr(engine, "memory_mib", {})
        self._seen |= {f"memory/engine/{name}": mib for name, mib in reported.items()}

    def metrics(self) -> dict[str, float]:
        """Everything read so far."""
        return dict(self._seen)

    def _read_cuda(self, name: str, stats: dict[str, dict[str, dict[str, int]]]) -> None:
        allocated = stats["allocated_bytes"]["all"]
        self._seen[f"{name}/allocated"] = allocated["current"] / MIB
        self._seen[f"{name}/reserved"] = stats["reserved_bytes"]["all"]["current"] / MIB
        self._seen[f"{name}/peak"] = max(allocated["peak"] / MIB, self._seen.get(f"{name}/peak", 0.0))


def by_state(state: str, devices: Mapping[str, float] | None = None) -> dict[str, float]:
    """What this process holds, in MiB, by the names that an engine reports: "sampled/cpu/resident".

    `devices`, as `used_on_devices` of the processes that compute for it; without them those that this one has touched.
    """
    held = {f"cpu/{name}": number / MIB for name, number in _held()}
    return {f"{state}/{name}": mib for name, mib in {**held, **(devices or used_on_devices())}.items()}


def used_on_devices() -> dict[str, float]:
    """MiB that all processes hold of each CUDA device that this one has touched: also what is not torch's own."""
    used = {}
    for number in _touched():
        free, total = torch.cuda.mem_get_info(number)
        used[f"cuda{number}/used"] = (total - free) / MIB
    return used


def of_process() -> dict[str, int]:
    """Bytes of this process by the kernel's name: VmRSS is resident, VmHWM the most that ever was, RssAnon and RssFile
    are parts of the former, VmData is what RLIMIT_DATA bounds. Empty elsewhere than on Linux.
    """
    with contextlib.suppress(OSError):
        fields = (line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return {name: int(value.split()[0]) * 1024 for name, value in fields if name.startswith(("Vm", "Rss"))}
    return {}


def set_back_peak() -> None:
    """VmHWM counts from what is resident now, on Linux."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _there(device: torch.device) -> bool:
    return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()


def _touched() -> Iterator[int]:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield from (n for n in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(n))


def _held() -> Iterator[tuple[str, int]]:
    """Bytes that this process holds, and the most it ever held; elsewhere than on Linux only the latter is cheap.

    Linux's getrusage would count what the process that started this one had held.
    """
    if numbers := of_process():
        yield "resident", numbers["VmRSS"]
        yield "peak_resident", numbers["VmHWM"]
        return
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield "peak_resident", most * (1 if sys.platform == "darwin" else 1024)


def _available() -> int | None:
    """Of the whole machine: free, or taken by caches that would give way."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return capacity(torch.device("cpu"))  # no /proc: all there is


def limits_of_groups(folders: Iterable[Path]) -> Iterator[int]:
    """The memory limit of each control group that has one."""
    for folder in folders:
        for limit in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # "max" is no number, and no limit
                yield int((folder / limit).read_text())


def left_in_groups(folders: Iterable[Path]) -> Iterator[int]:
    """What each control group leaves of its memory limit, caches that would give way counted as left; those without a
    limit say nothing. In both versions of the interface.
    """
    for folder in folders:
        for limit, used, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            with contextlib.suppress(OSError, ValueError, KeyError):  # "max" is no number, and no limit
                most = int((folder / limit).read_text())
                stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                if most < UNLIMITED:
                    yield max(0, most - int((folder / used).read_text()) + int(stat[cache]))
