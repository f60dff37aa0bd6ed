"""Runs programs: each in a new interpreter without rights, which is watched over its pipes and killed at its limits.

One thread runs one loop over all pipes: no thread of the harness is forked, and no read blocks.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import secrets
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from winnow.verify.sandbox import bwrap, landlock, preamble, seccomp
from winnow.verify.sandbox.interpreter import Interpreter
from winnow.verify.sandbox.limits import Ending, Limits, Program, RunResult

_FLAGS = ("-s", "-S", "-P", "-B", "-X", "utf8")
_USERS = range(61184, 65520)  # ids of no account: systemd takes one of them for each service with a dynamic user
_READ_BYTES = 1 << 16
_RECHECK_SECONDS = 0.002  # for a program that has closed its pipes but not exited
_SHOWN = 2000  # characters of stderr


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The layers that protect the machine from a program, in addition to the limits."""

    interpreter: Interpreter
    bubblewrap: str | None  # its path
    landlock: int  # version, 0: without
    seccomp: bool
    own_user: bool  # a separate user for each run; needs root

    def __str__(self) -> str:
        used = {"bubblewrap": self.bubblewrap, "landlock": self.landlock, "seccomp": self.seccomp}
        names = [*(name for name, value in used.items() if value), "limits"]
        return " + ".join(names) + (", each run as a separate user" if self.own_user else "")


def run_all(
    layers: Layers, programs: Iterable[Program], limits: Limits, *, at_once: int, until: float = math.inf
) -> Iterator[tuple[int, RunResult]]:
    """Yield each program's place and result when it exits; at most `at_once` run at a time, started in order.

    At `until` (of time.monotonic) running programs are killed, with the ending time_limit, and no more are started.
    Closing the iterator kills the programs that still run.
    """
    waiting = enumerate(programs)
    running: dict[int, _Process] = {}
    try:
        while True:
            room = at_once - len(running) if time.monotonic() < until else 0
            for place, program in itertools.islice(waiting, room):
                running[place] = _Process(layers, program, limits, until)
            if not running:
                return
            _wait(running.values())
            for place, process in tuple(running.items()):
                run = process.advance()
                if run is not None:
                    del running[place]
                    yield place, run
    finally:
        for process in running.values():
            process.end()


def _wait(running: Iterable[_Process]) -> None:
    """Wait until a pipe of one of them is ready, or a time limit is reached."""
    poll, seconds = select.poll(), 60.0
    for process in running:
        seconds = min(seconds, process.seconds_to_next_check())
        for pipe, events in process.pipes():
            poll.register(pipe, events)
    poll.poll(max(0.0, seconds) * 1000)


class _Process:
    """One running program."""

    def __init__(self, layers: Layers, program: Program, limits: Limits, until: float) -> None:
        self._limits = limits
        self._wrapped = layers.bubblewrap is not None
        self._nonce = secrets.token_hex(8).encode()
        self._started = time.monotonic()
        self._until = until
        self._deadline = min(self._started + limits.wall_seconds, until)
        self._killed: Ending | None = None
        self._pipes, theirs = _pipes()
        self._message = memoryview(_message(layers, program, limits, theirs.report, self._nonce))
        self._received = {pipe: bytearray() for pipe in self._pipes[1:]}
        self._open = set(self._received)  # pipes to which the program may still write
        self._held = set(self._pipes)  # the harness's ends that are not closed yet
        self._process, self._failure = _start(layers, theirs)
        for pipe in theirs:
            os.close(pipe)

    def pipes(self) -> Iterator[tuple[int, int]]:
        """The file descriptors and poll events for which `advance` has work to do."""
        if self._message:
            yield self._pipes.stdin, select.POLLOUT
        for pipe in self._open:
            yield pipe, select.POLLIN

    def seconds_to_next_check(self) -> float:
        """Seconds until `advance` has work to do even if no pipe is ready."""
        left = self._deadline - time.monotonic()
        return left if self._open else min(left, _RECHECK_SECONDS)

    def advance(self) -> RunResult | None:
        """Write its input, read its output, and kill it at a limit. Returns the result once it has exited."""
        if self._process is None:
            self.end()
            return RunResult(ending="sandbox_error", detail=f"the sandbox did not start: {self._failure}")
        self._write_input()
        poll = select.poll()
        for pipe in self._open:
            poll.register(pipe, select.POLLIN)
        for pipe, _ in poll.poll(0):
            piece = os.read(pipe, _READ_BYTES)
            self._received[pipe] += piece
            if not piece:
                self._open.discard(pipe)
            elif len(self._received[pipe]) > self._limits.output_bytes:
                self._stop(self._process, "output_limit")
        if self._killed is None and time.monotonic() >= self._deadline:
            self._stop(self._process, "time_limit")
        if self._open:
            return None
        pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
        if pid == 0:
            return None
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self.end()
        return self._run(self._process.returncode, usage.ru_utime + usage.ru_stime)

    def end(self) -> None:
        """Kill the process if it still runs, and close every pipe."""
        if self._process is not None and self._process.returncode is None:
            _kill(self._process, wrapped=self._wrapped)
            self._process.wait()
        for pipe in tuple(self._held):
            self._close(pipe)

    def _write_input(self) -> None:
        try:
            while self._message:
                self._message = self._message[os.write(self._pipes.stdin, self._message[:_READ_BYTES]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # the program does not read the rest
            self._message = self._message[:0]
        self._close(self._pipes.stdin)

    def _close(self, pipe: int) -> None:
        if pipe in self._held:
            self._held.remove(pipe)
            os.close(pipe)

    def _stop(self, process: subprocess.Popen[bytes], why: Ending) -> None:
        """Kill it and stop reading: under "unsafe" it may have started a process that keeps its pipes open, for which
        the harness must not wait.
        """
        self._killed = self._killed or why
        _kill(process, wrapped=self._wrapped)
        self._open.clear()

    def _run(self, code: int, cpu_seconds: float) -> RunResult:
        stdout, stderr, report = (bytes(data) for data in self._received.values())
        seconds = time.monotonic() - self._started
        lines = report.splitlines() or [b""]
        shown = stderr[-_SHOWN:].decode("utf-8", "replace").strip()
        # At the common deadline this is no failure: a program that was started late may not be ready yet.
        if lines[0] != self._nonce + b" ready" and not (self._killed and time.monotonic() >= self._until):
            return RunResult(
                ending="sandbox_error", detail=f"it exited before the program began: {shown}", seconds=seconds
            )
        ending = self._killed or _ending(code, lines[-1], cpu_seconds, self._limits)
        head = self._nonce + b" value "
        value = lines[-1].removeprefix(head) if lines[-1].startswith(head) else None
        late = self._killed == "time_limit"
        return RunResult(ending=ending, stdout=stdout, value=value, detail=shown, seconds=seconds, late=late)


class _Pipes(NamedTuple):
    """The trainer's or the program's ends of the four pipes."""

    stdin: int
    stdout: int
    stderr: int
    report: int


def _pipes() -> tuple[_Pipes, _Pipes]:
    """The trainer's ends and the program's ends."""
    (stdin, feed), *others = (os.pipe() for _ in range(4))
    os.set_blocking(feed, False)
    ours, theirs = zip(*others, strict=True)
    return _Pipes(feed, *ours), _Pipes(stdin, *theirs)


def _kill(process: subprocess.Popen[bytes], *, wrapped: bool) -> None:
    """Kill a program; under bubblewrap its child, which bubblewrap reaps (PID 1 of a container may never do so)."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        victims = [int(pid) for pid in children.read_text().split()] if wrapped else []
    except OSError:
        victims = []
    for pid in victims or [process.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _ending(code: int, last_line: bytes, cpu_seconds: float, limits: Limits) -> Ending:
    """The ending of a program that exited before the harness killed it. Bubblewrap exits with 128 + the signal of its
    child, but a program can exit with such a code itself.
    """
    # Also of one that has finished: bubblewrap's child is process 1 of its namespace, which ignores SIGXCPU
    if code in (-signal.SIGXCPU, 128 + signal.SIGXCPU) or cpu_seconds >= limits.cpu_seconds:
        return "time_limit"
    if code == 0:
        return "finished"
    if code == -signal.SIGKILL:
        return "sandbox_error"  # no program can cause it: the machine is out of memory, or another process killed it
    if code == 128 + signal.SIGKILL or last_line == b"memory_limit":
        return "memory_limit"
    return "compile_error" if last_line == b"compile_error" else "runtime_error"


def _start(layers: Layers, pipes: _Pipes) -> tuple[subprocess.Popen[bytes] | None, str]:
    """The process, or the reason for none. It is in the harness's process group, so that both are killed together."""
    python = layers.interpreter
    before = bwrap.command(layers.bubblewrap, python) if layers.bubblewrap else []
    user = secrets.choice(_USERS) if layers.own_user else None
    try:
        process = subprocess.Popen(
            [*before, python.executable, *_FLAGS, "-c", _shim()],
            stdin=pipes.stdin,
            stdout=pipes.stdout,
            stderr=pipes.stderr,
            pass_fds=(pipes.report,),
            env=dict(python.environment),
            cwd="/",
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
    except (OSError, subprocess.SubprocessError) as error:
        return None, str(error)
    return process, ""


@functools.cache
def _shim() -> str:
    return files("winnow.verify.sandbox").joinpath("shim.py").read_text(encoding="utf-8")


def _message(layers: Layers, program: Program, limits: Limits, report: int, nonce: bytes) -> bytes:
    allowed = "\n".join(f"{landlock.rights(path)} {path}" for path in layers.interpreter.readable)
    numbers = (
        *(report, os.getpid(), limits.memory_mb << 20, limits.cpu_seconds, _threads(layers, limits), limits.open_files),
        *landlock.ruleset(layers.landlock),
    )
    frames = (
        *(" ".join(map(str, numbers)).encode(), allowed.encode(), _filter() if layers.seccomp else b"", nonce),
        *(preamble.table(), program.function.encode(), program.arguments.encode(), program.code),
    )
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames) + program.stdin


@functools.cache
def _filter() -> bytes:
    machine = seccomp.machine()
    assert machine is not None, "the layers were chosen for this machine"
    return seccomp.assemble(machine)


def _threads(layers: Layers, limits: Limits) -> int:
    """The limit on threads.

    The kernel counts the threads of a user within a user namespace. A run without a separate user or namespace shares
    that count with the trainer, whose threads are bounded by the number of all threads of this machine.
    """
    if layers.own_user or layers.bubblewrap:
        return limits.threads
    try:
        return limits.threads + int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    except OSError:
        return 2**16
