"""The process between trainer and workers: imports the reward once, forks workers from that state, and kills them.

    python -m winnow.verify.forkserver <socket> <settings>

It is a fresh interpreter, never a fork of the trainer: no CUDA context, no threads and no torch get into a worker,
and a fork costs about a millisecond, the reward's imports included. It alone watches the clock, so that a busy trainer
cannot delay a kill. Tasks come in and verdicts go out as lines (see `wire`); a verdict is passed on unread.

    trainer  --tasks-->   zygote  --tasks-->   worker, one at a time
             <-verdicts-          <-verdicts-
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from winnow.errors import WinnowError
from winnow.records import Cause
from winnow.rewards.compose import Score, make_reward, warm
from winnow.rewards.outcomes import failure
from winnow.verify.codec import SOCKET_HINT, encode_error, encode_outcome
from winnow.verify.dispatch import (
    SLOW_SECONDS,
    TASKS_PER_WORKER,
    Task,
    Worker,
    blocked,
    give_away,
    least_busy,
    someone_idle,
)
from winnow.verify.line_socket import LONGEST_VERDICT, Wire, wait
from winnow.verify.worker import OUT_OF_MEMORY, serve
from winnow.verify.worker_settings import WARM_UP_LIMITS, Settings

HEARTBEAT_SECONDS = 1.0  # how often an idle zygote looks whether its trainer is alive


class Zygote:
    """The loop: hand out tasks, pass verdicts on, kill what is overdue, bury what died.

    A worker's first verdict waits for what the reward imports, reads or tries out when it is first called, and that
    does not count against the limit: it may take `_warm_up` seconds more, and what took longer than the limit is then
    judged again by the same worker. As long as nothing is known of the reward that is ten times the limit, and half as
    much after each first verdict that never came, as it may be the answer that hangs, or the reward; then it is twice
    what the slowest first verdict took.
    """

    def __init__(self, trainer: Wire, reward: Score, settings: Settings) -> None:
        self._trainer = trainer
        self._reward = reward
        self._settings = settings
        self._parent = os.getppid()
        self._queue: deque[Task] = deque()
        self._workers: list[Worker] = []
        self._killed: list[int] = []  # pids still to be reaped
        self._slowest_first: float | None = None  # seconds that a worker's first verdict took
        self._warm_up = WARM_UP_LIMITS * settings.timeout_seconds

    def run(self) -> None:
        """Until the trainer is gone; then no worker is left."""
        while not self._trainer.closed and os.getppid() == self._parent:
            wait([self._trainer, *(worker.wire for worker in self._workers)], self._patience())
            for worker in tuple(self._workers):
                self._listen(worker)
            self._kill_overdue()
            for line in self._trainer.exchange():
                self._queue.append(Task(ticket=line.partition(b" ")[0], line=line))
            self._hand_out()
            self._reap()
        for worker in tuple(self._workers):
            self._kill(worker)
        self._reap(flags=0)

    def _patience(self) -> float:
        now = time.monotonic()
        due = [worker.started + self._limit(worker) - now for worker in self._workers if worker.tasks]
        if someone_idle(self._workers, self._settings.workers):
            due += [worker.started + SLOW_SECONDS - now for worker in blocked(self._workers)]
        return min([HEARTBEAT_SECONDS, *due])

    def _limit(self, worker: Worker) -> float:
        """Seconds for the task in hand."""
        return self._settings.timeout_seconds + (0.0 if worker.warm else self._warm_up)

    def _hand_out(self) -> None:
        """Whatever waits goes to whoever has room; no task waits behind a slow one while another worker is idle."""
        self._deal()
        now = time.monotonic()
        for worker in blocked(self._workers):
            if now - worker.started >= SLOW_SECONDS and someone_idle(self._workers, self._settings.workers):
                self._queue.extend(give_away(worker))
                self._deal()

    def _deal(self) -> None:
        while self._queue:
            worker = least_busy(self._workers)
            if (worker is None or worker.tasks) and len(self._workers) < self._settings.workers:
                worker = self._fork()
            if worker is None:
                break
            if not worker.tasks:
                worker.started = time.monotonic()
            task = self._queue.popleft()
            worker.tasks.append(task)
            worker.wire.send(task.line)
        for worker in self._workers:
            worker.wire.flush()

    def _listen(self, worker: Worker) -> None:
        sane = all(self._pass_on(worker, line) for line in worker.wire.exchange()) and not worker.wire.flooded
        if worker.retiring and not worker.tasks:  # it may have gone on with what was given away
            self._kill(worker)
        elif worker.wire.closed or not sane:
            self._bury(worker, sane=sane)
        elif worker.answered >= TASKS_PER_WORKER:
            self._kill(worker)

    def _pass_on(self, worker: Worker, line: bytes) -> bool:
        """False for what is no verdict of the task in hand: the reward wrote into its worker's socket."""
        if not worker.tasks or not line.startswith(worker.tasks[0].ticket + b" "):
            return False
        began, worker.started = worker.started, time.monotonic()
        seconds = worker.started - began
        if not worker.warm and self._was_warming_up(worker, seconds):
            worker.wire.send(worker.tasks[0].line)
            return True
        self._trainer.send(line)
        worker.tasks.popleft()
        worker.answered += 1
        worker.took(seconds)
        return True

    def _was_warming_up(self, worker: Worker, seconds: float) -> bool:
        """True for a first verdict that took longer than a verdict may."""
        worker.warm = True
        self._slowest_first = max(seconds, self._slowest_first or 0.0)
        self._warm_up = 2 * self._slowest_first
        return seconds > self._settings.timeout_seconds

    def _bury(self, worker: Worker, *, sane: bool) -> None:
        """A worker died: what it was judging is tried once more, for the machine may be to blame, not the reward."""
        self._remove(worker)
        _, status, usage = os.wait4(worker.pid, 0)
        cause, detail = _cause_of_death(status, usage.ru_maxrss / 1024, self._settings.memory_mb)
        if not sane:
            cause, detail = "crash", _NONSENSE
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
        for worker in tuple(self._workers):
            limit = self._limit(worker)
            if worker.tasks and now - worker.started >= limit:
                self._kill(worker)
                detail = f"no verdict within {self._settings.timeout_seconds:g} seconds; the worker was killed"
                if not worker.warm and self._warm_up:
                    detail += f" after {limit:.3g}, with what its first verdict was given to import and prepare"
                    self._warm_up = self._warm_up if self._slowest_first else self._warm_up / 2
                self._fail(worker.tasks.popleft(), "timeout", detail, seconds=now - worker.started)
                self._requeue(worker)

    def _kill(self, worker: Worker) -> None:
        """Without waiting for its end: giving back much memory takes a while."""
        self._remove(worker)
        self._killed.append(worker.pid)

    def _remove(self, worker: Worker) -> None:
        """Kill it together with the processes its reward started."""
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError, PermissionError):  # macOS refuses for a zombie
                kill(worker.pid, signal.SIGKILL)
        worker.wire.close()
        self._workers.remove(worker)

    def _requeue(self, worker: Worker) -> None:
        self._queue.extendleft(reversed(worker.tasks))
        worker.tasks.clear()

    def _fail(self, task: Task, cause: Cause, detail: str, *, seconds: float) -> None:
        outcome = replace(failure(cause, detail), seconds=seconds)
        self._trainer.send(task.ticket + b" " + encode_outcome(outcome))

    def _reap(self, flags: int = os.WNOHANG) -> None:
        self._killed = [pid for pid in self._killed if os.waitpid(pid, flags)[0] == 0]

    def _fork(self) -> Worker:
        ours, theirs = socket.socketpair()
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._leave(ours)
            serve(theirs, self._reward, memory_mb=self._settings.memory_mb, parent=zygote)
        theirs.close()
        with suppress(OSError):  # the worker does the same, whoever comes first
            os.setpgid(pid, pid)
        worker = Worker(pid, Wire(ours, longest=LONGEST_VERDICT))
        self._workers.append(worker)
        return worker

    def _leave(self, ours: socket.socket) -> None:
        """In the fork: keep no socket of anyone else, or their ends would never be seen."""
        os.setpgid(0, 0)
        ours.close()
        for wire in (self._trainer, *(worker.wire for worker in self._workers)):
            wire.close()


_NONSENSE = f"the worker sent what is no verdict of its task, and so did a second one; {SOCKET_HINT}"


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
        trainer.send(b"error " + encode_error(error))
        trainer.flush()
        sys.exit(1)
    gc.collect()
    gc.freeze()  # a worker's collections would otherwise copy every page of the imports
    Zygote(trainer, reward, settings).run()
    sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
