"""The trainer's side of the workers: tasks out, verdicts in, and a new zygote when the old one dies.

There is no thread here. `submit` writes what the socket takes and reads what has come; `result` waits. Workers judge
in between, while the trainer samples or computes.
"""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque

from winnow.errors import ConfigError, VerifierError
from winnow.records import Outcome, Prompt, Rollout
from winnow.verify.codec import decode_error, decode_outcome, encode_task
from winnow.verify.line_socket import Wire, wait
from winnow.verify.worker_settings import WARM_UP_LIMITS, Settings

BYTES_AT_ZYGOTE = 32 * 2**20  # unanswered tasks it may hold; the others wait here
SILENCE_SECONDS = 60.0  # beyond what one verdict may take: a zygote that is slower is stuck, or its imports are
STARTS_WITHOUT_VERDICT = 3
STOP_SECONDS = 2.0
_LONGEST_TICKET = 20  # digits
_LOOK_AGAIN_SECONDS = 0.05  # another thread may have read our verdict
_MODULE = ("-P", "-u", "-m", "winnow.verify.forkserver")  # import path: the trainer's alone; prints: not lost in a kill


class Pool:
    """Killable workers. Safe to use from any thread; starts at the first `submit`."""

    def __init__(self, settings: Settings, *, name: str) -> None:
        self._settings = settings.to_json()
        self._patience = (1 + WARM_UP_LIMITS) * settings.timeout_seconds + SILENCE_SECONDS
        self._name = name
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._zygote: _Process | None = None
        self._tasks: dict[int, bytes] = {}  # every task without a verdict, by ticket
        self._waiting: deque[int] = deque()  # of these, not yet sent
        self._bytes_sent = 0  # of the others
        self._verdicts: dict[int, bytes] = {}
        self._starts = 0  # since the last verdict
        self._garbled = False  # the zygote sent what is no verdict
        self._refusal: str | None = None  # why the zygote could not import the reward
        self._closed = False

    def submit(self, prompt: Prompt, rollout: Rollout) -> int:
        """The ticket to ask `result` for. Never waits for a verdict."""
        task = encode_task(prompt, rollout)
        with self._lock:
            ticket = next(self._numbers)
            self._tasks[ticket] = b"%d %b" % (ticket, task)
            self._waiting.append(ticket)
            self._exchange()
        return ticket

    def result(self, ticket: int) -> Outcome:
        """The verdict, once. Raises ConfigError when no worker can import the reward, VerifierError when none lives."""
        heard = time.monotonic()
        while True:
            with self._lock:
                if ticket not in self._verdicts and self._exchange():
                    heard = time.monotonic()
                if ticket in self._verdicts:
                    return decode_outcome(self._verdicts.pop(ticket))
                zygote = self._running()
                if zygote.wire.closed or self._garbled or time.monotonic() - heard > self._patience:
                    self._start_over(zygote)
                    heard = time.monotonic()
            wait([zygote.wire], _LOOK_AGAIN_SECONDS)

    def close(self) -> None:
        """End zygote and workers; idempotent."""
        with self._lock:
            self._closed = True
            if self._zygote is not None:
                self._zygote.stop()

    def _exchange(self) -> int:
        """Send what may be sent, store what has come; how many verdicts that was."""
        wire = self._running().wire
        while self._waiting and self._bytes_sent < BYTES_AT_ZYGOTE:
            line = self._tasks[self._waiting.popleft()]
            self._bytes_sent += len(line)
            wire.send(line)
        lines = wire.exchange()
        for line in lines:
            self._store(line)
        return len(lines)

    def _store(self, line: bytes) -> None:
        head, _, body = line.partition(b" ")
        if head == b"error":
            self._refusal = decode_error(body)
            raise ConfigError(self._refusal)
        ticket = int(head) if head.isdigit() and len(head) < _LONGEST_TICKET else -1
        if ticket not in self._tasks:  # a reward's file wrote into the zygote's socket while it was imported
            self._garbled = True
            return
        self._bytes_sent -= len(self._tasks.pop(ticket))
        self._verdicts[ticket] = body
        self._starts = 0

    def _running(self) -> _Process:
        if self._closed:
            raise VerifierError(f"the workers of the reward {self._name!r} are closed")
        if self._refusal is not None:
            raise ConfigError(self._refusal)
        if self._zygote is None:
            self._zygote = _Process(self._settings)
            self._starts += 1
        return self._zygote

    def _start_over(self, zygote: _Process) -> None:
        """Every task without a verdict goes to a fresh zygote."""
        status = zygote.stop()
        if self._starts >= STARTS_WITHOUT_VERDICT:
            raise VerifierError(
                f"the process that runs the reward {self._name!r} ended {self._starts} times without a single verdict "
                f"(status {status}); what it printed is above. To see the error happen here, set verify.workers = 0"
            )
        self._zygote = None
        self._garbled = False
        self._waiting = deque(sorted(self._tasks))
        self._bytes_sent = 0


class _Process:
    """A running zygote and the wire to it; ends with the interpreter, or when nobody holds it any more."""

    def __init__(self, settings: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, *_MODULE, str(theirs.fileno()), settings],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for the trainer, which then decides
            )
        self.wire = Wire(ours)
        self._process = process
        self._stop = weakref.finalize(self, _stop, self.wire, process)

    def stop(self) -> int | None:
        """Its exit status."""
        self._stop()
        return self._process.returncode


def _stop(wire: Wire, process: subprocess.Popen[bytes]) -> None:
    wire.close()  # which tells the zygote to kill its workers and go
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _environment() -> dict[str, str]:
    """The trainer's, with its import path; one thread each, and one order of sets, so that a verdict repeats."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, **one_thread, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}
