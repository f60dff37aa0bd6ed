"""Real processes over gloo that a test session has for itself: one group per number of ranks serves all its cases.

A case is a function of a module in this folder, "module:function" with plain arguments. It runs on every rank between
two exchanges, inside `ranks.joined`, and on the test's own process as rank 0 of 1. A group starts once, with the first
case; after a case in which a rank has raised, died or taken too long, its processes are ended, and the next case gets
new ones: what that rank had sent may still be on its way.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import forked

HERE = Path(__file__).parent
SECONDS = 120.0  # of a case, and of a start: far more than either takes on a busy machine
AFTER_THE_FIRST = 10.0  # seconds that the other ranks have left once one has raised
EXCHANGE_SECONDS = 2 * SECONDS  # never reached: the limit of the case comes before


class CaseError(Exception):
    """A case raised, died or took too long on some rank; the text says which, where."""


class Answer(NamedTuple):
    """What a rank gives: a value, or how it failed."""

    value: Any
    failure: str | None


class Group:
    """`count` processes, each a rank."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.starts = 0
        self._started: list[tuple[BaseProcess, Connection]] = []
        self._store: Any = None  # where the ranks meet; it lives as long as they do
        self._notes: tempfile.TemporaryDirectory[str] | None = None  # where each rank writes what it is at

    def run(self, case: str, *arguments: Any, seconds: float = SECONDS, **named: Any) -> list[Any]:
        """What the case returns, by rank. Raises CaseError, which names case and rank, unless it returns on all."""
        if not self._started:
            self._start()
        for _, pipe in self._started:
            pipe.send((case, arguments, named, seconds))
        answers = self._answers(seconds)
        failed = {rank: answer.failure for rank, answer in enumerate(answers) if answer.failure}
        if failed:
            self.close()
            told = "\n".join(f"--- rank {rank} of {self.count}\n{text}" for rank, text in failed.items())
            raise CaseError(f"{case} failed\n{told}")
        return [answer.value for answer in answers]

    def close(self) -> None:
        """End the processes, whatever they do."""
        for process, pipe in self._started:
            pipe.close()
            process.kill()
        for process, _ in self._started:
            process.join()
        if self._notes is not None:
            self._notes.cleanup()
        self._started, self._store, self._notes = [], None, None

    def _start(self) -> None:
        from torch.distributed import TCPStore

        self.starts += 1
        self._notes = tempfile.TemporaryDirectory(prefix="ranks-")
        # The port is the system's choice, and is taken from here on: as torch's launcher does it
        self._store = TCPStore("127.0.0.1", 0, self.count, is_master=True, wait_for_workers=False)
        context = forked.context()
        for rank in range(self.count):
            ours, theirs = context.Pipe()
            around = {**_variables(rank, self.count), "MASTER_PORT": str(self._store.port)}
            process = context.Process(target=_serve, args=(theirs, around, self._note(rank)), daemon=True)
            process.start()
            theirs.close()
            self._started.append((process, ours))
        failed = [answer.failure for answer in self._answers(SECONDS) if answer.failure]
        if failed:
            self.close()
            raise CaseError(f"{self.count} ranks could not be started\n" + "\n".join(failed))

    def _answers(self, seconds: float) -> list[Answer]:
        found: dict[int, Answer] = {}
        until = time.monotonic() + seconds
        of = {pipe: rank for rank, (_, pipe) in enumerate(self._started)}
        while len(found) < self.count:
            waiting = [pipe for pipe, rank in of.items() if rank not in found]
            ready = wait(waiting, timeout=max(0.0, until - time.monotonic()))
            if not ready:
                late = Answer(None, "no answer within its time")
                found |= {of[pipe]: late._replace(failure=f"{late.failure}\n{self._at(of[pipe])}") for pipe in waiting}
            for pipe in ready:
                found[of[pipe]] = answer = self._received(of[pipe])
                if answer.failure:
                    until = min(until, time.monotonic() + AFTER_THE_FIRST)
        return [found[rank] for rank in range(self.count)]

    def _received(self, rank: int) -> Answer:
        process, pipe = self._started[rank]
        try:
            return Answer(*pipe.recv())
        except (EOFError, OSError):
            process.join(SECONDS)
            return Answer(None, f"its process ended with {process.exitcode}")

    def _note(self, rank: int) -> str:
        assert self._notes is not None
        return os.path.join(self._notes.name, f"rank-{rank}")

    def _at(self, rank: int) -> str:
        """Where a rank is that gives no answer, as far as its process has said."""
        with contextlib.suppress(OSError):
            return Path(self._note(rank)).read_text() or "it was still at work"
        return "it never began"


def alone(case: str, *arguments: Any, **named: Any) -> Any:
    """What the case returns on the one rank of a run of one process: this one."""
    return _function(case)(*arguments, **named)


@contextlib.contextmanager
def group(count: int) -> Iterator[Group]:
    """A group for as long as this lasts."""
    made = Group(count)
    try:
        yield made
    finally:
        made.close()


def _variables(rank: int, count: int) -> dict[str, str]:
    """As torch's launcher sets them."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # rank 0 makes no store of its own
        "TORCHELASTIC_RESTART_COUNT": "0",
        "OMP_NUM_THREADS": "1",
        **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
    }


def _serve(pipe: Connection, variables: dict[str, str], note: str) -> None:
    """One rank: cases, one after the other, until the pipe ends."""
    os.environ.update(variables)
    sys.path[:0] = [str(HERE)]
    with open(note, "w") as at:
        try:
            import torch

            from winnow import ranks

            torch.set_num_threads(1)
            with ranks.joined(timeout_seconds=EXCHANGE_SECONDS):
                pipe.send((None, None))
                while True:
                    case, arguments, named, seconds = pipe.recv()
                    faulthandler.dump_traceback_later(0.9 * seconds, file=at)
                    pipe.send((_function(case)(*arguments, **named), None))
                    faulthandler.cancel_dump_traceback_later()
        except (EOFError, BrokenPipeError):  # the test session is over
            os._exit(0)
        except BaseException:
            with contextlib.suppress(OSError):
                pipe.send((None, traceback.format_exc()))
            os._exit(1)  # nothing may wait for the other ranks


def _function(case: str) -> Any:
    module, _, name = case.partition(":")
    return getattr(importlib.import_module(module), name)
