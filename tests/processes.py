"""Whether other processes run, and waiting for what they do."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def alive(pid: int | str) -> bool:
    """Whether a process runs. A zombie that is not reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends between opening and reading
        return False


def eventually(condition: Callable[[], bool], seconds: float = 120.0) -> bool:
    """Whether a condition holds within these seconds, which no test needs if all is well."""
    until = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < until:
        time.sleep(0.01)
    return holds
