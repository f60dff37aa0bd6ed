"""The life of an engine's process, as its trainer sees it: start, last words, end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import IO

from winnow.engines.process.messages import Wire

STOP_SECONDS = 10.0  # for a process to end by itself, once it is told to; vLLM on two devices takes 6
LAST_LINES = 20
_LINE_BYTES = 1000
_MODULE = ("-P", "-u", "-X", "faulthandler", "-m", "winnow.engines.process.child")


class Life:
    """A running process and the wire to it. With it end all processes it started.

    It ends by `end` or `kill`, when nobody holds this object any more, and with the trainer, however that ends.
    """

    def __init__(self, *, weights: int, environment: Mapping[str, str]) -> None:
        """`weights` is a descriptor that the process inherits, closed here at the end; `environment` is added to the
        trainer's.
        """
        ours, theirs = socket.socketpair()
        watched, held = os.pipe()
        inherited = (theirs.fileno(), watched, weights)
        self._process = subprocess.Popen(
            [sys.executable, *_MODULE, *map(str, inherited)],
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": _import_path(), **environment},
            start_new_session=True,  # Ctrl-C is for the trainer, which then decides
        )
        theirs.close()
        os.close(watched)
        self.wire = Wire(ours)
        self._said: deque[bytes] = deque(maxlen=LAST_LINES)
        assert self._process.stdout is not None
        self._listener = threading.Thread(target=_listen, args=(self._process.stdout, self._said), daemon=True)
        self._listener.start()
        self._stayed = False  # when it was told to go
        self._end = weakref.finalize(self, _end, self._process, self.wire, (held, weights))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def over(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def end(self) -> None:
        """Close the wire, which tells it to go; kill what has not gone in time. Idempotent."""
        self._stayed = bool(self._end()) or self._stayed
        self._listener.join(STOP_SECONDS)

    def kill(self) -> None:
        """End it at once. Idempotent."""
        if self._end.alive:
            _kill_group(self.pid)
        self.end()

    def fate(self) -> str:
        """How it ended, in words; only once it has."""
        if self._stayed:
            return f"closed its end of the wire, and had to be killed {STOP_SECONDS:g} seconds later"
        code = self._process.returncode
        if code >= 0:
            return f"exited with status {code}"
        hint = ", as the system does where memory runs out" if code == -signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-code).name}{hint}"

    def last_words(self) -> str:
        """The last lines it printed, if any."""
        lines = [line.decode("utf-8", "replace").rstrip() for line in list(self._said)]
        return "\n  ".join(["what it printed last:", *lines]) if lines else "it printed nothing"


def _listen(stream: IO[bytes], said: deque[bytes]) -> None:
    """Read what the process prints, so that it never waits for a reader; the last lines are kept."""
    with stream:
        said.extend(iter(lambda: stream.readline(_LINE_BYTES), b""))


def _end(process: subprocess.Popen[bytes], wire: Wire, files: Iterable[int]) -> bool:
    """Whether it had to be killed."""
    wire.close()
    try:
        process.wait(STOP_SECONDS)
        stayed = False
    except subprocess.TimeoutExpired:
        stayed = True
    _kill_group(process.pid)
    process.wait()
    for file in files:
        os.close(file)
    return stayed


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS refuses for a zombie
        os.killpg(leader, signal.SIGKILL)


def _import_path() -> str:
    """The trainer's."""
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)
