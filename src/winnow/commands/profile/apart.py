"""Measure a point in a separate process: even a crash of that process gives a result, and its memory is freed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import IO, Any

from winnow.commands.profile.device_memory import (
    is_out_of_memory,
    lift_limit,
    mentions_out_of_memory,
    prefer_for_oom_kill,
)
from winnow.commands.profile.points import Job, PointResult
from winnow.errors import WinnowError, format_error

Measure = Callable[[Job, Callable[[], None]], PointResult]
PRELOADED = "winnow.commands.profile.work"
LAST = 400  # characters of a process's last output


def measure_in_subprocess(job: Job, measure: Measure, *, on_cpu: bool) -> PointResult:
    """Return the result of `measure(job, loaded)`, called in a process that may run out of memory or time.

    It may take `job.seconds` after its call of `loaded`. On a CPU the process is forked from one that has imported
    everything and computed nothing; a process that uses CUDA cannot be forked, and is spawned.
    """
    context: Any = multiprocessing.get_context("forkserver" if on_cpu else "spawn")
    if on_cpu:
        context.set_forkserver_preload([PRELOADED])
    ours, theirs = context.Pipe()
    with tempfile.TemporaryFile() as log, ours:
        output = Connection(os.dup(log.fileno()))
        process = context.Process(target=_run_child, args=(job, measure, theirs, output), daemon=True)
        with theirs, output:
            process.start()
        try:
            result = _receive_result(job, ours)
            ending = _describe_exit(process) if result is None else ""
        finally:
            process.kill()
            process.join()
        return result or _result_without_message(job, ending, _last_output(log))


def _receive_result(job: Job, messages: Connection) -> PointResult | None:
    """The result that the process sends; None if it exited without one."""
    limit: float | None = None  # loading has no limit
    try:
        while messages.poll(limit):
            if isinstance(message := messages.recv(), PointResult):
                return message
            limit = job.seconds  # the message "loaded"
    except EOFError:
        return None
    return PointResult(job.point, "out of time", why=f"not measured within {job.seconds:g} seconds")


def _run_child(job: Job, measure: Measure, messages: Connection, output: Connection) -> None:
    """In the process: measure, and send the result."""
    prefer_for_oom_kill()
    threading.Thread(target=_exit_with_command, args=(messages,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command handles Ctrl-C, and kills this process
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    try:
        result = measure(job, lambda: messages.send("loaded"))
    except Exception as error:
        lift_limit()
        result = _failed(job, error)
    messages.send(result)


def _exit_with_command(messages: Connection) -> None:
    """Exit when the command has exited or was killed, which closes the other end of the pipe."""
    with contextlib.suppress(EOFError, OSError):
        messages.recv()
    os._exit(1)


def _failed(job: Job, error: Exception) -> PointResult:
    message = format_error(error) if isinstance(error, WinnowError) else f"{type(error).__name__}: {error}"
    return PointResult(
        job.point,
        "out of memory" if is_out_of_memory(error, limited=job.memory_limit is not None) else "failed",
        why=_short(message),
    )


def _describe_exit(process: BaseProcess) -> str:
    """The signal or the status with which a process exited."""
    process.join()
    code = process.exitcode or 0
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"


def _result_without_message(job: Job, ending: str, last: str) -> PointResult:
    """The result of a process that exited without one.

    SIGKILL counts as out of memory, because the kernel sends it then. A library may also abort the process.
    """
    killed = ending == f"killed by {signal.SIGKILL.name}"
    memory = killed or mentions_out_of_memory(last, limited=job.memory_limit is not None)
    ending = f"{ending} (by the system, for its memory?)" if killed and not last else ending
    why = f"its process was {ending}" if ending.startswith("killed") else f"its process {ending}"
    return PointResult(
        job.point, "out of memory" if memory else "failed", why=_short(f"{why}: {last}" if last else why)
    )


def _last_output(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read()[-LAST:].decode("utf-8", "replace").strip()


def _short(text: str) -> str:
    return " ".join(text.split())[:LAST]
