"""Start the ranks of a process group on this machine, for a benchmark."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence


def launch(ranks: int, script: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Run one process of `script` per rank, with the variables of torch's launchers and one thread, until all exit.

    If one fails, all are stopped and this process exits. If this one is stopped, so are they.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # otherwise the ranks would continue without this process
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        **os.environ,
        **(environment or {}),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    command, children = [sys.executable, script, *arguments], list[subprocess.Popen[bytes]]()
    try:
        for rank in range(ranks):
            own = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            children.append(subprocess.Popen(command, env=own))
        codes = [child.wait() for child in children]
    finally:
        for child in children:
            child.kill()
    if any(codes):
        sys.exit(f"a rank of {script} failed: exit codes {codes}")
