"""Start and end of an engine's process from the trainer, and the last lines that it printed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import IO

from winnow.engines.process.messages import Channel
from winnow.errors import signal_name
from winnow.user_code import import_path

STOP_SECONDS = 10.0  # time for a process to exit after its channel is closed; vLLM on two devices takes 6
LAST_LINES = 20
_LINE_BYTES = 1000
_RANK_VARIABLES = frozenset(  # set by torch's launchers
    f"{of}{what}" for of in ("", "LOCAL_", "GROUP_", "ROLE_") for what in ("RANK", "WORLD_SIZE")
) | {"MASTER_ADDR", "MASTER_PORT", "ROLE_NAME", "TORCHELASTIC_USE_AGENT_STORE"}
_MODULE = ("-P", "-u", "-X", "faulthandler", "-m", "winnow.engines.process.child")


class EngineProcess:
    """A process that runs an engine, and the channel to it. Its child processes end with it.

    It ends by `stop` or `kill`, when this object is garbage collected, and when the trainer exits for any reason.
    """

    def __init__(self, *, environment: Mapping[str, str]) -> None:
        """`environment` is added to the trainer's, without the variables of a rank."""
        ours, theirs = socket.socketpair()
        watched, held = os.pipe()
        inherited = (theirs.fileno(), watched)
        self.folder = tempfile.mkdtemp(prefix="winnow-engine-")  # removed when the process or the trainer exits
        self._process = subprocess.Popen(
            [sys.executable, *_MODULE, *map(str, inherited), self.folder],
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={
                **_without_rank(os.environ),
                "PYTHONPATH": os.pathsep.join(import_path()),
                **environment,
            },
            start_new_session=True,  # only the trainer receives Ctrl-C
        )
        theirs.close()
        os.close(watched)
        self.channel = Channel(ours)
        self._printed: deque[bytes] = deque(maxlen=LAST_LINES)
        assert self._process.stdout is not None
        output = (self._process.stdout, self._printed)
        self._reader = threading.Thread(target=_read_output, args=output, daemon=True)
        self._reader.start()
        self._did_not_exit = False  # whether it had to be killed after its channel was closed
        self._stop = weakref.finalize(self, _stop, self._process, self.channel, held, self.folder)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the process has exited."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """Close the channel, so that the process exits; kill it if it still runs after `STOP_SECONDS`. Idempotent."""
        self._did_not_exit = bool(self._stop()) or self._did_not_exit
        self._reader.join(STOP_SECONDS)

    def kill(self) -> None:
        """Kill the process at once. Idempotent."""
        if self._stop.alive:
            _kill_group(self.pid)
        self.stop()

    def describe_exit(self) -> str:
        """How the process ended, for an error message; only after its end."""
        if self._did_not_exit:
            return f"closed its end of the connection, and was killed {STOP_SECONDS:g} seconds later"
        code = self._process.returncode
        if code >= 0:
            return f"exited with status {code}"
        hint = ", as the system does where memory runs out" if code == -signal.SIGKILL else ""
        return f"was killed by {signal_name(-code)}{hint}"

    def last_output(self) -> str:
        """The last lines that the process printed."""
        lines = [line.decode("utf-8", "replace").rstrip() for line in list(self._printed)]
        return "\n  ".join(["The last lines that it printed:", *lines]) if lines else "It printed nothing."


def _read_output(stream: IO[bytes], printed: deque[bytes]) -> None:
    """Read all output of the process, so that a full pipe never blocks it; keep the last lines."""
    with stream:
        printed.extend(iter(lambda: stream.readline(_LINE_BYTES), b""))


def _stop(process: subprocess.Popen[bytes], channel: Channel, held: int, folder: str) -> bool:
    """End the process and release its resources; returns whether it had to be killed."""
    channel.close()
    try:
        process.wait(STOP_SECONDS)
        killed = False
    except subprocess.TimeoutExpired:
        killed = True
    _kill_group(process.pid)  # also after an exit, because child processes may still run
    process.wait()
    os.close(held)
    shutil.rmtree(folder, ignore_errors=True)
    return killed


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS refuses for a zombie
        os.killpg(leader, signal.SIGKILL)


def _without_rank(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without a rank's variables: an engine's process must not join the ranks' process group."""
    return {name: value for name, value in environment.items() if name not in _RANK_VARIABLES}
