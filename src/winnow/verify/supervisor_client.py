"""The trainer's side of the workers: it sends tasks, receives verdicts, and restarts a supervisor that has exited.

It has no thread. `submit` writes as much as the socket accepts and reads received verdicts; `result` waits. Workers
judge in between, while the trainer samples or computes.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from winnow.environments.judging import reads
from winnow.errors import ConfigError, VerifierError
from winnow.records import Outcome, Prompt, Reply, Rollout
from winnow.user_code import import_path
from winnow.verify.codec import EncodedPrompts, decode_error, decode_verdict, encode_task
from winnow.verify.dispatch import CLOSE, NONE
from winnow.verify.failures import check_restart
from winnow.verify.line_socket import LineSocket, wait
from winnow.verify.worker import WARM_UP_LIMITS, WorkerSettings

UNANSWERED_BYTES = 32 * 2**20  # limit of tasks in the supervisor; the others wait unencoded in the trainer
PROMPT_BYTES = 16 * 2**20  # cache of encoded prompts, because many rollouts have the same prompt
SILENCE_SECONDS = 60.0  # beyond the limit of one verdict; after that the supervisor, or an import in it, hangs
STOP_SECONDS = 2.0
_LONGEST_TICKET = 20  # digits
_RECHECK_SECONDS = 0.05  # another thread may have read this thread's verdict
# -P: only the trainer's import path; -u: unbuffered output; faulthandler: SIGABRT prints where it is
_MODULE = ("-P", "-u", "-X", "faulthandler", "-m", "winnow.verify.supervisor")


class SupervisorClient:
    """Killable workers. Safe to use from any thread; starts at the first `submit`."""

    def __init__(self, settings: WorkerSettings, *, name: str) -> None:
        self._settings = settings.to_json()
        self._reads = functools.cache(lambda: reads(settings.reward, base=Path(settings.base)))
        self._encode_prompt = EncodedPrompts(PROMPT_BYTES)
        turns = settings.reward.get("max_turns", 1)  # of a replay
        # A worker's first verdict, which is judged again if it took longer than the limit
        self._longest_silence = (2 * turns + WARM_UP_LIMITS) * settings.timeout_seconds + SILENCE_SECONDS
        self._name = name
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._server: _SupervisorProcess | None = None
        # Every task without a verdict, by ticket, with the number of its episode
        self._tasks: dict[int, tuple[Prompt, Rollout, int | None]] = {}
        self._waiting: deque[int] = deque()  # tickets of unsent tasks
        self._sent: dict[int, int] = {}  # the bytes of each sent task, by ticket
        self._bytes_sent = 0  # their sum
        self._verdicts: dict[int, bytes] = {}
        self._starts = 0  # since the last verdict
        self._garbled = False  # the supervisor sent a line that is no verdict
        self._refusal: ConfigError | None = None  # the error for which the supervisor could not import the reward
        self._closed = False

    def submit(self, prompt: Prompt, rollout: Rollout, episode: int | None = None) -> int:
        """Queue a task and return the ticket for `result`. Never waits for a verdict.

        With the number of an `episode`, a worker keeps the environment's generator for the episode's next task.
        Raises DataError when the prompt cannot be sent, ConfigError when the reward cannot be imported.
        """
        with self._lock:
            self._reads()
            self._encode_prompt(prompt)
            ticket = next(self._numbers)
            self._tasks[ticket] = prompt, rollout, episode
            self._waiting.append(ticket)
            self._exchange()
        return ticket

    def result(self, ticket: int) -> Outcome | Reply:
        """The verdict of a ticket; each ticket is valid once.

        Raises ConfigError when the reward cannot be imported, VerifierError when no supervisor keeps running.
        """
        last_verdict = time.monotonic()
        while True:
            with self._lock:
                if ticket not in self._verdicts and self._exchange():
                    last_verdict = time.monotonic()
                if ticket in self._verdicts:
                    return decode_verdict(self._verdicts.pop(ticket))
                server = self._running()
                if server.socket.closed or self._garbled or time.monotonic() - last_verdict > self._longest_silence:
                    self._restart(server)
                    last_verdict = time.monotonic()
            wait([server.socket], _RECHECK_SECONDS)

    def give_up(self, episodes: Iterable[int]) -> None:
        """Have the generators of these episodes closed. Does nothing if no supervisor runs."""
        with self._lock:
            if self._server is not None and not self._closed:
                for episode in episodes:
                    self._server.socket.send(b"%b %d 0 %b" % (NONE, episode, CLOSE))
                self._server.socket.flush()

    def close(self) -> None:
        """Stop the supervisor and its workers; idempotent."""
        with self._lock:
            self._closed = True
            if self._server is not None:
                self._server.stop()

    def _exchange(self) -> int:
        """Send tasks within the limits, store the received verdicts, and return their number."""
        connection = self._running().socket
        connection.flush()
        while self._waiting and self._bytes_sent < UNANSWERED_BYTES and not connection.unsent:
            ticket = self._waiting.popleft()  # encoded only now, so that few tasks exist twice in memory
            prompt, rollout, episode = self._tasks[ticket]
            task = encode_task(self._encode_prompt(prompt), rollout, logprobs="logprobs" in self._reads())
            self._sent[ticket] = len(task)
            self._bytes_sent += len(task)
            turns = len(rollout.turns or ()) // 2 + 1
            connection.send(b"%d %b %d " % (ticket, NONE if episode is None else b"%d" % episode, turns), task)
            connection.flush()
        lines = connection.exchange()
        for line in lines:
            self._store(line)
        return len(lines)

    def _store(self, line: bytes) -> None:
        head, _, body = line.partition(b" ")
        if head == b"error":
            self._refusal = decode_error(body)
            raise copy.copy(self._refusal)
        ticket = int(head) if head.isdigit() and len(head) < _LONGEST_TICKET else -1
        if ticket not in self._sent:  # the reward's file wrote into the socket while it was imported
            self._garbled = True
            return
        del self._tasks[ticket]
        self._bytes_sent -= self._sent.pop(ticket)
        self._verdicts[ticket] = body
        self._starts = 0

    def _running(self) -> _SupervisorProcess:
        if self._closed:
            raise VerifierError(
                f"the workers of the reward {self._name!r} are closed",
                remedy="make new Verifiers, or close these later",
                code="verifier.closed",
            )
        if self._refusal is not None:
            raise copy.copy(self._refusal)  # raising the same object again would extend its traceback
        if self._server is None:
            self._server = _SupervisorProcess(self._settings)
            self._starts += 1
        return self._server

    def _restart(self, server: _SupervisorProcess) -> None:
        """Stop this supervisor, and queue every task without a verdict for the next one. Raises VerifierError."""
        check_restart(self._name, self._starts, server.stop())
        self._server = None
        self._garbled = False
        self._waiting = deque(sorted(self._tasks))
        self._sent.clear()
        self._bytes_sent = 0


class _SupervisorProcess:
    """A running supervisor and the socket to it; it stops with the interpreter, or when this object is collected."""

    def __init__(self, settings: str) -> None:
        ours, theirs = socket.socketpair()
        path = import_path()
        with theirs:
            # The trainer's environment and import path, with one thread per process and a fixed hash seed (repeatable).
            one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
            process = subprocess.Popen(
                [sys.executable, *_MODULE, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.PIPE,
                env={**os.environ, **one_thread, "PYTHONPATH": os.pathsep.join(path), "PYTHONHASHSEED": "0"},
                start_new_session=True,  # Ctrl-C reaches the trainer alone
            )
        self.socket = LineSocket(ours)
        self._process = process
        self._stop = weakref.finalize(self, _stop, self.socket, process)
        # By a pipe, because a command line has at most 128 KiB per word, and an option may be a list of words. The path
        # again, because PYTHONPATH, by which winnow itself is found, cannot contain a folder with a colon.
        assert process.stdin is not None, "it is a pipe"
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(f"{json.dumps(path)}\n{settings}\n".encode("ascii"))

    def stop(self) -> int | None:
        """Stop it and return its exit status."""
        self._stop()
        return self._process.returncode


def _stop(connection: LineSocket, process: subprocess.Popen[bytes]) -> None:
    connection.close()  # then the supervisor kills its workers and exits
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
