"""The process between trainer and workers: it imports the reward once, forks workers, and kills those over a limit.

    python -m winnow.verify.supervisor <socket>  <settings

It is a new interpreter, never a fork of the trainer. So a worker has no CUDA context, no threads and no torch, and a
fork takes about a millisecond, the reward's imports included. Only this process enforces the time limit, so a busy
trainer cannot delay a kill. Tasks and verdicts are lines (line_socket.py); a verdict is forwarded undecoded.

    trainer  --tasks-->   supervisor   --tasks-->   worker, one at a time
             <-verdicts-               <-verdicts-

failures.py determines the outcome of a rollout without a verdict, and dispatch.py which worker judges a task.
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
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from winnow.control_groups import mapped_memory
from winnow.environments.judging import Judge, make_judge, warm
from winnow.errors import WinnowError
from winnow.records import Outcome
from winnow.verify.codec import encode_error, encode_outcome
from winnow.verify.dispatch import (
    NONE,
    SLOW_SECONDS,
    Claims,
    Task,
    Worker,
    any_idle,
    keeper,
    least_busy,
    with_waiting_tasks,
)
from winnow.verify.failures import is_retried, timed_out, worker_ended
from winnow.verify.line_socket import LONGEST_VERDICT, LineSocket, wait
from winnow.verify.worker import WARM_UP_LIMITS, WorkerSettings, serve

HEARTBEAT_SECONDS = 1.0  # how often an idle supervisor checks that its trainer still runs


def has_exited(pid: int) -> bool:
    """Whether a child process has exited; it is not reaped. Its socket does not always tell: a process that the reward
    started keeps the other end open. False before Python 3.13 on macOS, where there is no `waitid`.
    """
    return hasattr(os, "waitid") and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class Supervisor:
    """The loop: assign tasks, forward verdicts, kill workers that exceed a limit, replace those that exited.

    A worker's first verdict includes imports and other work that the reward does once. This does not count against the
    limit: the first verdict may take `_warm_up` seconds more, and a task that took longer than the limit is judged
    again by the same worker. Until some worker has given its first verdict, `_warm_up` is ten times the limit, halved
    after each first verdict that timed out. It is halved because either that answer or the reward itself may hang.
    Afterwards it is twice the time of the slowest first verdict, and at most what it was at the start.
    """

    def __init__(self, trainer: LineSocket, reward: Judge, settings: WorkerSettings) -> None:
        self._trainer = trainer
        self._reward = reward
        self._settings = settings
        self._parent = os.getppid()
        self._queue: deque[Task] = deque()
        self._workers: list[Worker] = []
        self._killed: list[int] = []  # pids that are not reaped yet
        self._slowest_first: float | None = None  # seconds of the slowest first verdict of a worker
        self._warm_up = WARM_UP_LIMITS * settings.timeout_seconds
        _, self._imports = mapped_memory()

    def run(self) -> None:
        """Work until the trainer has closed its socket or exited; then kill every worker."""
        while not self._trainer.closed and os.getppid() == self._parent:
            wait([self._trainer, *(worker.socket for worker in self._workers)], self._seconds_to_next_check())
            for worker in tuple(self._workers):
                self._read(worker)
            self._kill_overdue()
            for line in self._trainer.exchange():
                self._enqueue(Task.of(line))
            self._dispatch()
            self._reap()
        for worker in tuple(self._workers):
            self._kill(worker)
        self._reap(flags=0)

    def _seconds_to_next_check(self) -> float:
        now = time.monotonic()
        due = [worker.started + self._limit(worker) - now for worker in self._workers if worker.tasks]
        if any_idle(self._workers, self._settings.workers):
            due += [worker.started + SLOW_SECONDS - now for worker in with_waiting_tasks(self._workers)]
        return min([HEARTBEAT_SECONDS, *due])

    def _limit(self, worker: Worker) -> float:
        """Seconds for the task that the worker is judging."""
        return self._limit_of_verdict(worker) + (0.0 if worker.warm else self._warm_up)

    def _limit_of_verdict(self, worker: Worker) -> float:
        """The same without what a first verdict may take in addition. The limit is for one turn of a replay."""
        return self._settings.timeout_seconds * worker.turns

    def _enqueue(self, task: Task) -> None:
        owner = keeper(self._workers, task)
        if owner is not None:
            owner.waiting.append(task)
        elif not task.closes:
            self._queue.append(task)
        else:  # a turn that still waits is answered, and its generator not kept
            for waiting in self._queue:
                waiting.episode = NONE if waiting.episode == task.episode else waiting.episode

    def _dispatch(self) -> None:
        """Assign queued tasks; none waits behind a slow verdict while another worker is idle."""
        self._assign()
        now = time.monotonic()
        for worker in with_waiting_tasks(self._workers):
            if now - worker.started >= SLOW_SECONDS and any_idle(self._workers, self._settings.workers):
                for task in reversed(worker.take_back()):
                    (worker.waiting if task.episode in worker.episodes else self._queue).appendleft(task)
                self._assign()

    def _assign(self) -> None:
        for owner in self._workers:  # first what only one worker can judge, which also finishes what was begun
            while owner.waiting and owner.room > 0:
                self._give(owner, owner.waiting.popleft())
        while self._queue:
            worker = least_busy(self._workers)
            if (worker is None or worker.tasks) and len(self._workers) < self._settings.workers:
                worker = self._fork()
            if worker is None:
                break
            self._give(worker, self._queue.popleft())
        for each in self._workers:
            each.socket.flush()

    def _give(self, worker: Worker, task: Task) -> None:
        if not worker.tasks:
            worker.started = time.monotonic()
        worker.assign(task)

    def _read(self, worker: Worker) -> None:
        exited = has_exited(worker.pid)  # before its last line is read, which it may still write
        valid = all(self._forward(worker, line) for line in worker.socket.exchange()) and not worker.socket.overflowed
        if exited or worker.socket.closed or not valid:
            self._replace_ended(worker, valid_lines=valid)
        elif worker.is_spent:
            self._kill(worker)

    def _forward(self, worker: Worker, line: bytes) -> bool:
        """Forward a verdict. False for any other line: the reward wrote into its worker's socket."""
        if not worker.tasks or not line.startswith(worker.tasks[0].ticket + b" "):
            return False
        began, worker.started = worker.started, time.monotonic()
        seconds = worker.started - began
        if not worker.warm:
            worker.warm = True
            self._slowest_first = max(seconds, self._slowest_first or 0.0)
            self._warm_up = min(2 * self._slowest_first, WARM_UP_LIMITS * self._settings.timeout_seconds)
            if seconds > self._limit_of_verdict(worker):
                worker.send(worker.tasks[0])
                return True
        if not worker.settle(line.partition(b" ")[2]).closes:
            self._trainer.send(line)
        worker.answered += 1
        worker.record_verdict(seconds)
        return True

    def _replace_ended(self, worker: Worker, *, valid_lines: bool) -> None:
        """Queue again the tasks of a worker that has exited, except a task that is not judged once more."""
        self._remove(worker)
        _, status, usage = os.wait4(worker.pid, 0)
        peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)  # macOS: bytes, others: KiB
        outcome = worker_ended(
            status,
            peak_mb=(peak - self._imports) / 2**20,
            memory_mb=self._settings.memory_mb,
            valid_lines=valid_lines,
        )
        if worker.tasks:
            task = worker.tasks[0]
            others = not worker.episodes <= {task.episode}
            if is_retried(outcome, crashed_before=task.crashed, beside_others=others):
                task.crashed = True
            else:
                self._fail(worker.tasks.popleft(), outcome, seconds=time.monotonic() - worker.started)
        self._requeue(worker)

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        for worker in tuple(self._workers):
            if worker.tasks and now - worker.started >= (limit := self._limit(worker)):
                self._kill(worker)
                if not worker.warm:
                    self._warm_up = self._warm_up if self._slowest_first else self._warm_up / 2
                first = None if worker.warm else limit
                outcome = timed_out(self._limit_of_verdict(worker), first_verdict_seconds=first)
                self._fail(worker.tasks.popleft(), outcome, seconds=now - worker.started)
                self._requeue(worker)

    def _kill(self, worker: Worker) -> None:
        """Kill a worker without waiting until it has exited, because freeing much memory takes a while."""
        self._remove(worker)
        self._killed.append(worker.pid)

    def _remove(self, worker: Worker) -> None:
        """Kill a worker together with the processes that its reward started."""
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError, PermissionError):  # macOS refuses for a zombie
                kill(worker.pid, signal.SIGKILL)
        worker.close()
        self._workers.remove(worker)

    def _requeue(self, worker: Worker) -> None:
        """Queue the other tasks of a worker that has ended, and replay the generators that it kept."""
        self._queue.extendleft(task for task in reversed([*worker.tasks, *worker.waiting]) if not task.closes)
        worker.tasks.clear()

    def _fail(self, task: Task, outcome: Outcome, *, seconds: float) -> None:
        if not task.closes:
            self._trainer.send(task.ticket + b" " + encode_outcome(replace(outcome, seconds=seconds)))

    def _reap(self, flags: int = os.WNOHANG) -> None:
        self._killed = [pid for pid in self._killed if os.waitpid(pid, flags)[0] == 0]

    def _fork(self) -> Worker:
        ours, theirs = socket.socketpair()
        claims, server = Claims(), os.getpid()
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            ours.close()  # as all inherited sockets: an open copy would hide that the other side has closed
            self._trainer.close()
            for worker in self._workers:
                worker.close()
            claims.keep_reading_end()
            serve(theirs, claims, self._reward, memory_mb=self._settings.memory_mb, parent=server)
        theirs.close()
        with suppress(OSError):  # the worker does the same: either process may run first
            os.setpgid(pid, pid)
        worker = Worker(pid, LineSocket(ours, longest=LONGEST_VERDICT), claims)
        self._workers.append(worker)
        return worker


def main(arguments: Sequence[str]) -> NoReturn:
    """Import the reward, or send the error; then work until the trainer exits."""
    trainer = LineSocket(socket.socket(fileno=int(arguments[0])))
    sys.path[:] = json.loads(sys.stdin.readline())
    settings = WorkerSettings(**json.loads(sys.stdin.readline()))
    try:
        reward = make_judge(settings.reward, base=Path(settings.base))
        warm(settings.reward, base=Path(settings.base))
    except WinnowError as error:
        trainer.send(b"error " + encode_error(error))
        trainer.flush()
        sys.exit(1)
    gc.collect()
    gc.freeze()  # a worker's collections would otherwise copy every page of the imports
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if the trainer ignores it, workers would leave no status
    Supervisor(trainer, reward, settings).run()
    sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
