"""Starting and ending an engine's process from the trainer, and what it printed last."""

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

STOP_SECONDS = 10.0  # for a process to exit by itself once its channel is closed; vLLM on two devices takes 6
LAST_LINES = 20
_LINE_BYTES = 1000
_OF_A_RANK = frozenset(  # what torch's launchers set
    f"{of}{what}" for of in ("", "LOCAL_", "GROUP_", "ROLE_") for what in ("RANK", "WORLD_SIZE")
) | {"MASTER_ADDR", "MASTER_PORT", "ROLE_NAME", "TORCHELASTIC_USE_AGENT_STORE"}
_MODULE = ("-P", "-u", "-X", "faulthandler", "-m", "winnow.engines.process.child")


class EngineProcess:
    """A process that runs an engine, and the channel to it. All processes that it started end with it.

    It ends by `stop` or `kill`, when this object is garbage collected, and with the trainer, however that ends.
    """

    def __init__(self, *, environment: Mapping[str, str]) -> None:
        """`environment` is added to the trainer's, of which it gets all but what makes it a rank of a run."""
        ours, theirs = socket.socketpair()
        watched, held = os.pipe()
        inherited = (theirs.fileno(), watched)
        self.folder = tempfile.mkdtemp(prefix="winnow-engine-")  # gone when the process or the trainer ends
        self._process = subprocess.Popen(
            [sys.executable, *_MODULE, *map(str, inherited), self.folder],
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**_without_rank(os.environ), "PYTHONPATH": _import_path(), **environment},
            start_new_session=True,  # Ctrl-C goes to the trainer alone
        )
        theirs.close()
        os.close(watched)
        self.channel = Channel(ours)
        self._printed: deque[bytes] = deque(maxlen=LAST_LINES)
        assert self._process.stdout is not None
        output = (self._process.stdout, self._printed)
        self._reader = threading.Thread(target=_read_output, args=output, daemon=True)
        self._reader.start()
        self._did_not_exit = False  # by itself, when the channel was closed
        self._stop = weakref.finalize(self, _stop, self._process, self.channel, held, self.folder)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """Close the channel, at which the process exits; kill it where it has not in time. Idempotent."""
        self._did_not_exit = bool(self._stop()) or self._did_not_exit
        self._reader.join(STOP_SECONDS)

    def kill(self) -> None:
        """End it at once. Idempotent."""
        if self._stop.alive:
            _kill_group(self.pid)
        self.stop()

    def how_it_ended(self) -> str:
        """In words, for an error message; only once it has ended."""
        if self._did_not_exit:
            return f"closed its end of the connection, and had to be killed {STOP_SECONDS:g} seconds later"
        code = self._process.returncode
        if code >= 0:
            return f"exited with status {code}"
        hint = ", as the system does where memory runs out" if code == -signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-code).name}{hint}"

    def last_output(self) -> str:
        """The last lines it printed, if any."""
        lines = [line.decode("utf-8", "replace").rstrip() for line in list(self._printed)]
        return "\n  ".join(["The last lines that it printed:", *lines]) if lines else "It printed nothing."


def _read_output(stream: IO[bytes], printed: deque[bytes]) -> None:
    """Read what the process prints, so that it never waits for a reader; the last lines are kept."""
    with stream:
        printed.extend(iter(lambda: stream.readline(_LINE_BYTES), b""))


def _stop(process: subprocess.Popen[bytes], channel: Channel, held: int, folder: str) -> bool:
    """Whether it had to be killed."""
    channel.close()
    try:
        process.wait(STOP_SECONDS)
        killed = False
    except subprocess.TimeoutExpired:
        killed = True
    _kill_group(process.pid)
    process.wait()
    os.close(held)
    shutil.rmtree(folder, ignore_errors=True)
    return killed


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS refuses for a zombie
        os.killpg(leader, signal.SIGKILL)


def _without_rank(environment: Mapping[str, str]) -> dict[str, str]:
    """An engine's process is no rank of the run, and joins no group of theirs."""
    return {name: value for name, value in environment.items() if name not in _OF_A_RANK}


def _import_path() -> str:
    """The trainer's."""
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)
