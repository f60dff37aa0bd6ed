"""What this process may use: Linux control groups in both versions of their interface, cores and resource limits."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

ROOT, OF_PROCESS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def control_groups(controller: str, root: Path = ROOT, of_process: Path = OF_PROCESS) -> list[Path]:
    """Folders of this process's groups with a controller ("cpu", "memory"), and of the groups that contain them.

    Some may not exist. Inside a container, the root folder is the container's own group.
    """
    folders = {root, root / controller}
    with suppress(OSError):
        for line in of_process.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or controller in controllers.split(","):
                group = root / controllers / path.lstrip("/")
                folders |= {root / controllers, group, *(p for p in group.parents if p.is_relative_to(root))}
    return sorted(folders)


def cpu_quota(root: Path = ROOT, of_process: Path = OF_PROCESS) -> float | None:
    """Number of cores whose time this process may use, by its control groups; None without a limit."""
    limits = []
    for folder in control_groups("cpu", root, of_process):
        with suppress(OSError, ValueError):  # "max" means no limit and is no number
            quota, period = (folder / "cpu.max").read_text().split()
            limits.append(int(quota) / int(period))
        with suppress(OSError, ValueError):  # version 1, where -1 means no limit
            quota_us = int((folder / "cpu.cfs_quota_us").read_text())
            if quota_us > 0:
                limits.append(quota_us / int((folder / "cpu.cfs_period_us").read_text()))
    return min(limits, default=None)


def affinity() -> frozenset[int] | None:
    """The cores that this thread may run on; None where the system does not restrict it (macOS).

    Read it before torch is imported: OpenMP may then bind this thread to one core (OMP_PROC_BIND).
    """
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def usable_cores(root: Path = ROOT, of_process: Path = OF_PROCESS, *, allowed: frozenset[int] | None = None) -> float:
    """Number of cores whose time this process may use, by its affinity (`allowed`, or the present one) and its control
    groups.
    """
    allowed, quota = allowed or affinity(), cpu_quota(root, of_process)
    cores = (os.cpu_count() or 1) if allowed is None else len(allowed)
    return cores if quota is None else min(cores, quota)


def mapped_memory() -> tuple[int, int]:
    """Bytes of this process's address space, and the bytes in memory; 0 without /proc."""
    try:
        size, resident = Path("/proc/self/statm").read_text().split()[:2]
    except OSError:
        return 0, 0
    return int(size) * resource.getpagesize(), int(resident) * resource.getpagesize()


def limit_resource(what: int, most: int) -> None:
    """Set the soft limit of a resource (RLIMIT_...), as far as the hard one allows."""
    _, hard = resource.getrlimit(what)
    soft = hard if most == resource.RLIM_INFINITY or (hard != resource.RLIM_INFINITY and most > hard) else most
    with suppress(ValueError, OSError):  # a system without this limit
        resource.setrlimit(what, (soft, hard))
