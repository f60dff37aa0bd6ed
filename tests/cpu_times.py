"""CPU seconds per test, children included: WINNOW_CPU_TIMES=times.jsonl python -m pytest ... (see scripts/durations).

Wall-clock times depend on what else the machine does; CPU seconds depend on it far less. Setup and teardown count for
the test that they run for, so a session's fixture counts for its first test.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """User and system seconds of this process, its live descendants, and every child that any of them waited for.

    It reads the files of these processes alone: to read those of all processes takes longer than most tests.
    """
    ticks, processes = 0, [os.getpid()]
    while processes:
        folder = Path("/proc", str(processes.pop()))
        try:
            stat = (folder / "stat").read_text()
            listed = [file.read_text() for file in folder.glob("task/*/children")]
        except OSError:  # it exited meanwhile; its parent has its seconds once it has waited for it
            continue
        processes += map(int, " ".join(listed).split())
        fields = stat[stat.rindex(")") + 2 :].split()  # after the command's name, which may hold blanks
        ticks += sum(map(int, fields[11:15]))
    return ticks / TICKS


class CpuTimes:
    """Appends a line per test to a file; several workers of pytest-xdist may share it."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def append(self, test: str, seconds: float) -> None:
        with self.file.open("a") as lines:
            lines.write(json.dumps({"test": test, "seconds": round(seconds, 2)}) + "\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = cpu_seconds()
        result = yield
        self.append(item.nodeid, cpu_seconds() - before)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        """Imports included: what the process spent before its first test."""
        result = yield
        self.append("(start and collection)", cpu_seconds())
        return result
