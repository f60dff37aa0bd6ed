"""Memory in use: free memory of devices, and the memory of each phase of a step."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from winnow.control_groups import control_groups

MIB = 2**20
UNLIMITED = 2**60  # bytes; a control group without a limit reports more
_MEMORY = re.compile(rb"^((?:Vm|Rss)\w+):\s*(\d+) kB$", re.MULTILINE)


def free_bytes(device: torch.device) -> int | None:
    """Bytes that this process can still allocate on a device; None where unknown, or where the device does not exist.

    On the CPU: the system's available memory or the rest of the process's control group, whichever is less.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] if _is_present(device) else None
    return min(
        (free for free in (_available(), *left_in_groups(control_groups("memory"))) if free is not None), default=None
    )


def capacity(device: torch.device) -> int | None:
    """Total bytes of a device, or of this process's control group where that is less; None where it does not exist."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1] if _is_present(device) else None
    return min(
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *limits_of_groups(control_groups("memory")), UNLIMITED
    )


@dataclass
class Gauge:
    """Memory of this process and its CUDA devices at the end of each phase, by metric name (MiB).

    By default, `devices` are those on which it has reserved memory. Reading takes about 50 microseconds and does not
    synchronise with a device. A phase that is entered twice has the later end and the larger peak.
    """

    devices: tuple[int, ...] = field(default_factory=lambda: tuple(_used_devices()))
    _seen: dict[str, float] = field(default_factory=dict)

    def start(self) -> None:
        """Start a phase."""
        for device in self.devices:
            torch.cuda.reset_peak_memory_stats(device)

    def read(self, phase: str) -> None:
        """Measure at the end of a phase."""
        for name, held in _process_bytes():
            self._seen[f"memory/{phase}/cpu/{name}"] = held / MIB
        for device in self.devices:
            name, stats = f"memory/{phase}/cuda{device}", torch.cuda.memory_stats_as_nested_dict(device)
            allocated = stats["allocated_bytes"]["all"]
            self._seen[f"{name}/allocated"] = allocated["current"] / MIB
            self._seen[f"{name}/reserved"] = stats["reserved_bytes"]["all"]["current"] / MIB
            self._seen[f"{name}/peak"] = max(allocated["peak"] / MIB, self._seen.get(f"{name}/peak", 0.0))

    def read_engine(self, engine: object) -> None:
        """Add an engine's latest report of the memory that it uses elsewhere, where it has one (`memory_by_state`)."""
        reported: Mapping[str, float] = getattr(engine, "memory_mib", {})
        self._seen |= {f"memory/engine/{name}": mib for name, mib in reported.items()}

    def metrics(self) -> dict[str, float]:
        """All values measured so far."""
        return dict(self._seen)


def memory_by_state(state: str, devices: Mapping[str, float] | None = None) -> dict[str, float]:
    """MiB that this process uses, by the names that an engine reports: "sampled/cpu/resident".

    `devices` are `used_on_devices` of the processes that compute for it; by default those of this process.
    """
    held = {f"cpu/{name}": number / MIB for name, number in _process_bytes()}
    return {f"{state}/{name}": mib for name, mib in {**held, **(devices or used_on_devices())}.items()}


def used_on_devices() -> dict[str, float]:
    """MiB that all processes use, torch's or not, on each CUDA device on which this one has reserved memory."""
    used = {}
    for number in _used_devices():
        free, total = torch.cuda.mem_get_info(number)
        used[f"cuda{number}/used"] = (total - free) / MIB
    return used


def process_memory() -> dict[str, int]:
    """Bytes of this process by the kernel's names; empty on systems other than Linux.

    VmRSS is resident memory and VmHWM its peak; RssAnon and RssFile are parts of VmRSS. RLIMIT_DATA bounds VmData.
    """
    with contextlib.suppress(OSError), open("/proc/self/status", "rb", buffering=0) as file:
        found = {name.decode(): int(kib) * 1024 for name, kib in _MEMORY.findall(file.read())}
        return found if "VmHWM" in found else {}  # gVisor has neither peaks nor parts of VmRSS
    return {}


def reset_peak() -> None:
    """Reset the peak VmHWM to what is resident now, on Linux."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _is_present(device: torch.device) -> bool:
    """Whether a CUDA device exists."""
    return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()


def _used_devices() -> Iterator[int]:
    """Numbers of the CUDA devices on which this process has reserved memory."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield from (n for n in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(n))


def _process_bytes() -> Iterator[tuple[str, int]]:
    """Bytes that this process uses, and its peak. On systems other than Linux only the peak is cheap to read.

    On Linux, getrusage would include the peak of the process that started this one, so /proc is read.
    """
    if numbers := process_memory():
        yield "resident", numbers["VmRSS"]
        yield "peak_resident", numbers["VmHWM"]
        return
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield "peak_resident", most * (1 if sys.platform == "darwin" else 1024)  # macOS: bytes, others: KiB


def _available() -> int | None:
    """Bytes of the machine that are free or in caches that can be evicted; its capacity where none are reported."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return capacity(torch.device("cpu"))  # no /proc: the total is the best estimate


def limits_of_groups(folders: Iterable[Path]) -> Iterator[int]:
    """The memory limit of each control group that has one."""
    for folder in folders:
        for limit in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # "max" means no limit and is no number
                yield int((folder / limit).read_text())


def left_in_groups(folders: Iterable[Path]) -> Iterator[int]:
    """Bytes that each control group with a memory limit has left, counting caches that the kernel can evict as free.

    It reads both versions of the interface and skips groups without a limit.
    """
    for folder in folders:
        for limit, used, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            with contextlib.suppress(OSError, ValueError, KeyError):  # "max" means no limit and is no number
                most = int((folder / limit).read_text())
                stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                if most < UNLIMITED:
                    yield max(0, most - int((folder / used).read_text()) + int(stat[cache]))
