"""Real processes over gloo for one test session: a group per number of ranks runs all its cases.

A case is a function of a module in this folder, "module:function" with plain arguments. It runs on every rank between
two exchanges, inside `ranks.joined`, and in the test's process as rank 0 of 1. A group starts once, with the first
case. After a case in which a rank has raised, died or exceeded its time, the processes are ended, and the next case
gets new ones, as messages of that rank may still be in transit.
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
SECONDS = 120.0  # limit of a case, and of a start: far more than either needs on a busy machine
AFTER_THE_FIRST = 10.0  # seconds that the other ranks have left once one has raised
EXCHANGE_SECONDS = 2 * SECONDS  # never reached: the limit of the case comes before


class CaseError(Exception):
    """A case raised, died or exceeded its time on some rank; the text has the rank and the place."""


class Answer(NamedTuple):
    """The result of a rank: a value, or a description of its failure."""

    value: Any
    failure: str | None


class Group:
    """`count` processes, each a rank."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.starts = 0
        self._started: list[tuple[BaseProcess, Connection]] = []
        self._store: Any = None  # the rendezvous of the ranks; it must exist as long as they do
        self._notes: tempfile.TemporaryDirectory[str] | None = None  # each rank writes its stack there before a limit

    def run(self, case: str, *arguments: Any, seconds: float = SECONDS, **named: Any) -> list[Any]:
        """The results of the case, by rank. Raises CaseError, which names case and rank, unless it returns on all."""
        if not self._started:
            self._start()
        for _, pipe in self._started:
            pipe.send((case, arguments, named, seconds))
        answers = self._answers(seconds)
        failed = {rank: answer.failure for rank, answer in enumerate(answers) if answer.failure}
        if failed:
            self.close()
            failures = "\n".join(f"--- rank {rank} of {self.count}\n{text}" for rank, text in failed.items())
            raise CaseError(f"{case} failed\n{failures}")
        return [answer.value for answer in answers]

    def close(self) -> None:
        """Kill the processes, whatever they do."""
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
        # The system chooses the port and keeps it reserved from here on, as in torch's launcher
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
        """The stack of a rank that does not answer, as far as its process has written it."""
        with contextlib.suppress(OSError):
            return Path(self._note(rank)).read_text() or "it was still at work"
        return "it never started"


def alone(case: str, *arguments: Any, **named: Any) -> Any:
    """The result of the case in this process, as the only rank of a run."""
    return _function(case)(*arguments, **named)


@contextlib.contextmanager
def group(count: int) -> Iterator[Group]:
    """A group that is closed at the end of the block."""
    made = Group(count)
    try:
        yield made
    finally:
        made.close()


def _variables(rank: int, count: int) -> dict[str, str]:
    """The environment variables that torch's launcher sets."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # rank 0 uses the existing store instead of a new one
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCH_DISTRIBUTED_DEBUG": "DETAIL",  # each exchange is compared between the ranks, see recorder.py
        "OMP_NUM_THREADS": "1",
        **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
    }


def _serve(pipe: Connection, variables: dict[str, str], note: str) -> None:
    """One rank: cases, one after the other, until the pipe ends."""
    os.environ.update(variables)
    sys.path[:0] = [str(HERE)]
    with open(note, "w") as at:
        try:
            import recorder
            import torch

            from winnow import ranks

            torch.set_num_threads(1)
            recorder.install()
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
