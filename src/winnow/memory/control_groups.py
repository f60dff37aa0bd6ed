"""The control groups of this process (Linux), in both versions of their interface, and the processors they leave it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

ROOT, OF_PROCESS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def control_groups(controller: str, root: Path = ROOT, of_process: Path = OF_PROCESS) -> list[Path]:
    """The folders of this process's groups that have a controller ("cpu", "memory"), and of those around them; inside a
    container the paths may not exist, and the root then is the container's own.
    """
    found = {root, root / controller}
    with suppress(OSError):
        for line in of_process.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or controller in controllers.split(","):
                own = root / controllers / path.lstrip("/")
                found |= {root / controllers, own, *(around for around in own.parents if around.is_relative_to(root))}
    return sorted(found)


def cpu_quota(root: Path = ROOT, of_process: Path = OF_PROCESS) -> float | None:
    """The cores' worth of time that the control groups of this process leave it; None where none limits it."""
    found = []
    for folder in control_groups("cpu", root, of_process):
        with suppress(OSError, ValueError):  # "max" is no number, and no limit
            quota, period = (folder / "cpu.max").read_text().split()
            found.append(int(quota) / int(period))
        with suppress(OSError, ValueError):  # the older interface, where -1 is no limit
            quota_us = int((folder / "cpu.cfs_quota_us").read_text())
            if quota_us > 0:
                found.append(quota_us / int((folder / "cpu.cfs_period_us").read_text()))
    return min(found, default=None)
