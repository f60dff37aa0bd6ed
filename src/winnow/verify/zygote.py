"""The process between trainer and workers: imports the reward once, forks workers from that state, and kills them.

    python -m winnow.verify.zygote <socket> <settings>

It is a fresh interpreter, never a fork of the trainer: no CUDA context, no threads and no torch get into a worker,
and a fork costs about a millisecond, the reward's imports included. It alone watches the clock, so that a busy trainer
cannot delay a kill. Tasks come in and verdicts go out as lines (see `wire`); a verdict is passed on unread.

    trainer  --tasks-->   zygote  --tasks-->   worker, one at a time
             <-verdicts-          <-verdicts-
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from winnow.errors import WinnowError
from winnow.records import Cause
from winnow.rewards.compose import Score, make_reward, warm
from winnow.rewards.outcomes import failure
from winnow.verify.codec import encode_outcome
from winnow.verify.settings import Settings
from winnow.verify.wire import Wire, wait
from winnow.verify.worker import OUT_OF_MEMORY, serve

TASKS_AHEAD = 8  # a worker's pipe holds its next tasks, so that it never waits for the zygote
TASKS_PER_WORKER = 2000  # then a fresh one takes over, whatever the reward has leaked
HEARTBEAT_SECONDS = 1.0  # how often an idle zygote looks whether its trainer is alive


@dataclass
class _Task:
    ticket: bytes
    line: bytes
    crashed: bool = False  # once already


@dataclass(eq=False)
class _Worker:
    pid: int
    wire: Wire
    tasks: deque[_Task] = field(default_factory=deque)  # given and unanswered; the first is being judged
    started: float = 0.0  # when the first of them was
    answered: int = 0

    @property
    def room(self) -> int:
        return min(TASKS_AHEAD, TASKS_PER_WORKER - self.answered) - len(self.tasks)


class Zygote:
    """The loop: hand out tasks, pass verdicts on, kill what is overdue, bury what died."""

    def __init__(self, trainer: Wire, reward: Score, settings: Settings) -> None:
        self._trainer = trainer
        self._reward = reward
        self._settings = settings
        self._parent = os.getppid()
        self._queue: deque[_Task] = deque()
        self._workers: list[_Worker] = []
        self._killed: list[int] = []  # pids still to be reaped

    def run(self) -> None:
        """Until the trainer is gone; then no worker is left."""
        while not self._trainer.closed and os.getppid() == self._parent:
            wait([self._trainer, *(worker.wire for worker in self._workers)], self._patience())
            for worker in tuple(self._workers):
                self._listen(worker)
            self._kill_overdue()
            for line in self._trainer.exchange():
                self._queue.append(_Task(ticket=line.partition(b" ")[0], line=line))
            self._hand_out()
            self._reap()
        for worker in tuple(self._workers):
            self._kill(worker)
        self._reap(flags=0)

    def _patience(self) -> float:
        now = time.monotonic()
        due = [worker.started + self._settings.timeout_seconds - now for worker in self._workers if worker.tasks]
        return min([HEARTBEAT_SECONDS, *due])

    def _hand_out(self) -> None:
        while self._queue:
            free = [worker for worker in self._workers if worker.room > 0]
            worker = min(free, key=lambda w: len(w.tasks), default=None)
            if (worker is None or worker.tasks) and len(self._workers) < self._settings.workers:
                worker = self._fork()
            if worker is None:
                return
            if not worker.tasks:
                worker.started = time.monotonic()
            task = self._queue.popleft()
            worker.tasks.append(task)
            worker.wire.send(task.line)
            worker.wire.flush()

    def _listen(self, worker: _Worker) -> None:
        sane = all(self._pass_on(worker, line) for line in worker.wire.exchange())
        if worker.wire.closed or not sane:
            self._bury(worker)
        elif worker.answered >= TASKS_PER_WORKER:
            self._kill(worker)

    def _pass_on(self, worker: _Worker, line: bytes) -> bool:
        """False for what is no verdict of the task in hand: the reward wrote into its worker's socket."""
        if not worker.tasks or not line.startswith(worker.tasks[0].ticket + b" "):
            return False
        self._trainer.send(line)
        worker.tasks.popleft()
        worker.answered += 1
        worker.started = time.monotonic()
        return True

    def _bury(self, worker: _Worker) -> None:
        """A worker died: what it was judging is tried once more, for the machine may be to blame, not the reward."""
        self._remove(worker)
        _, status, usage = os.wait4(worker.pid, 0)
        cause, detail = _cause_of_death(status, usage.ru_maxrss / 1024, self._settings.memory_mb)
        if worker.tasks:
            task = worker.tasks.popleft()
            if cause == "crash" and not task.crashed:
                task.crashed = True
                worker.tasks.appendleft(task)
            else:
                self._fail(task, cause, detail, seconds=time.monotonic() - worker.started)
        self._requeue(worker)

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        limit = self._settings.timeout_seconds
        for worker in tuple(self._workers):
            if worker.tasks and now - worker.started >= limit:
                self._kill(worker)
                detail = f"no verdict within {limit:g} seconds; the worker was killed"
                self._fail(worker.tasks.popleft(), "timeout", detail, seconds=now - worker.started)
                self._requeue(worker)

    def _kill(self, worker: _Worker) -> None:
        """Without waiting for its end: giving back much memory takes a while."""
        self._remove(worker)
        self._killed.append(worker.pid)

    def _remove(self, worker: _Worker) -> None:
        """Kill it together with the processes its reward started."""
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError, PermissionError):  # macOS refuses for a zombie
                kill(worker.pid, signal.SIGKILL)
        worker.wire.close()
        self._workers.remove(worker)

    def _requeue(self, worker: _Worker) -> None:
        self._queue.extendleft(reversed(worker.tasks))
        worker.tasks.clear()

    def _fail(self, task: _Task, cause: Cause, detail: str, *, seconds: float) -> None:
        outcome = replace(failure(cause, detail), seconds=seconds)
        self._trainer.send(task.ticket + b" " + encode_outcome(outcome))

    def _reap(self, flags: int = os.WNOHANG) -> None:
        self._killed = [pid for pid in self._killed if os.waitpid(pid, flags)[0] == 0]

    def _fork(self) -> _Worker:
        ours, theirs = socket.socketpair()
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._leave(ours)
            serve(theirs, self._reward, memory_mb=self._settings.memory_mb, parent=zygote)
        theirs.close()
        with suppress(OSError):  # the worker does the same, whoever comes first
            os.setpgid(pid, pid)
        worker = _Worker(pid, Wire(ours))
        self._workers.append(worker)
        return worker

    def _leave(self, ours: socket.socket) -> None:
        """In the fork: keep no socket of anyone else, or their ends would never be seen."""
        os.setpgid(0, 0)
        ours.close()
        for wire in (self._trainer, *(worker.wire for worker in self._workers)):
            wire.close()


def _cause_of_death(status: int, peak_mb: float, memory_mb: int) -> tuple[Cause, str]:
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        if peak_mb > 0.8 * memory_mb:
            return "memory", f"the worker died of {name} at {peak_mb:.0f} MB, with a limit of {memory_mb} MB"
        return "crash", f"the worker died of {name}, and so did a second one"
    code = os.WEXITSTATUS(status)
    if code == OUT_OF_MEMORY:
        return "memory", f"more than {memory_mb} MB of memory"
    return "crash", f"the worker exited with status {code}, and so did a second one"


def main(arguments: Sequence[str]) -> NoReturn:
    """Import the reward, or say why not; then work until the trainer is gone."""
    trainer = Wire(socket.socket(fileno=int(arguments[0])))
    settings = Settings.from_json(arguments[1])
    try:
        reward = make_reward(settings.reward, base=Path(settings.base))
        warm(settings.reward)
    except WinnowError as error:
        trainer.send(b"error " + json.dumps(str(error)).encode("ascii"))
        trainer.flush()
        sys.exit(1)
    gc.collect()
    gc.freeze()  # a worker's collections would otherwise copy every page of the imports
    Zygote(trainer, reward, settings).run()
    sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
