"""Which worker judges which task next: the rules of the supervisor. This module starts no process and reads no clock.

A worker may be sent tasks in advance (prefetch), because waiting for the supervisor between quick verdicts would cost
more time than the verdicts. The tasks sent in advance are at most `PREFETCH_SECONDS` of work at the speed of the
worker's last verdicts, and at most `PREFETCH_BYTES`. If a verdict is slow nevertheless and another worker is idle,
the tasks that wait behind it are taken back and assigned to others. The slow worker keeps running, with all that it has
imported and prepared.

A pipe (`Claims`) decides whether a worker judges a task that was sent in advance, or the supervisor takes it back. It
contains one byte for each such task. The worker reads the byte before it begins the task, and the supervisor reads it
to take the task back. Only one of the two reads gets the byte, so no task is judged twice, and none is lost.

A worker that has answered a turn of an environment keeps its generator, so the later turns of that episode wait for
this worker. Without it, for example after it was killed, any worker replays the episode.
"""

from __future__ import annotations

import math
import os
import select
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from winnow.verify.codec import REPLY
from winnow.verify.line_socket import LineSocket

MAX_PREFETCH = 7  # tasks
PREFETCH_SECONDS = 0.005
PREFETCH_BYTES = 2**18  # no task is sent in advance while this many bytes are unanswered
SLOW_SECONDS = 0.02  # no task waits behind a verdict that takes longer while another worker is idle
TASKS_PER_WORKER = 2000  # then a new worker replaces it, which bounds the memory of a leaking reward
MOST_EPISODES = 1024  # whose generators a worker keeps; those of others are replayed at each turn

NONE, CLOSE = b"-", b"-"  # in the place of an episode's number, and of a task: the generator is to be closed
NUMBERS = 256  # values of a byte; far fewer tasks are between a worker and the supervisor at any time


@dataclass
class Task:
    """One line to a worker: "<ticket> <episode> <body>"."""

    ticket: bytes
    episode: bytes  # the number of an unfinished rollout in an environment; NONE for any other
    turns: int  # of the policy
    body: bytes
    crashed: bool = False  # whether it has crashed a worker before
    kept: bool = False  # whether its worker keeps the generator

    @classmethod
    def of(cls, line: bytes) -> Task:
        """The task in a line of the trainer: "<ticket> <episode> <turns> <body>"."""
        ticket, episode, turns, body = line.split(b" ", 3)
        return cls(ticket=ticket, episode=episode, turns=int(turns), body=body)

    @property
    def closes(self) -> bool:
        """Whether it closes a generator. Then nobody waits for its verdict."""
        return self.body == CLOSE


@dataclass(eq=False)
class Worker:
    """The supervisor's record of one of its worker processes."""

    pid: int
    socket: LineSocket
    claims: Claims
    tasks: deque[Task] = field(default_factory=deque)  # assigned and unanswered; the first is being judged
    waiting: deque[Task] = field(default_factory=deque)  # unassigned, for a generator that it keeps
    episodes: set[bytes] = field(default_factory=set)  # whose generators it keeps
    started: float = 0.0  # time.monotonic() at which judging the first task began
    answered: int = 0
    prefetch: int = 0  # tasks that may wait behind the one being judged
    warm: bool = False  # it has returned a verdict before, so its imports are done
    _sent: int = 0  # lines
    _last_seconds: float = math.inf  # duration of its last verdict

    @property
    def room(self) -> int:
        """The number of tasks that may still be assigned to it."""
        if sum(len(task.body) for task in self.tasks) >= PREFETCH_BYTES:
            return 0
        most = 1 + self.prefetch
        bound = self.episodes or self.waiting  # which no other worker can take over
        return (most if bound else min(most, TASKS_PER_WORKER - self.answered)) - len(self.tasks)

    @property
    def is_spent(self) -> bool:
        """Whether a new worker is to replace it."""
        return self.answered >= TASKS_PER_WORKER and not (self.episodes or self.tasks or self.waiting)

    @property
    def turns(self) -> int:
        """The number of turns that the task being judged takes: all of them if it is a replay."""
        return 1 if self.tasks[0].episode in self.episodes else max(1, self.tasks[0].turns)

    def assign(self, task: Task) -> None:
        """Send it a task, to be judged after those that it has."""
        self.tasks.append(task)
        self.send(task)

    def send(self, task: Task) -> None:
        """Send it a task's line, and the right to judge it."""
        task.kept = task.closes or task.episode in self.episodes or len(self.episodes) < MOST_EPISODES
        self.socket.send(b"%b %b " % (task.ticket, task.episode if task.kept else NONE), task.body)
        self.claims.offer(self._sent)
        self._sent += 1

    def take_back(self) -> list[Task]:
        """Take back every task that it has not begun, and return them in order. It gets none in advance until its next
        verdict.
        """
        self.prefetch = 0
        return [self.tasks.pop() for _ in range(self.claims.take_back())][::-1]

    def settle(self, verdict: bytes) -> Task:
        """Remove and return the task that it has judged. It keeps the generator of one that it has replied to."""
        task = self.tasks.popleft()
        self.episodes.discard(task.episode)
        if task.episode != NONE and task.kept and verdict.startswith(REPLY):
            self.episodes.add(task.episode)
        return task

    def close(self) -> None:
        """Close the supervisor's ends of the socket and of the pipe."""
        self.socket.close()
        self.claims.close()

    def record_verdict(self, seconds: float) -> None:
        """Set `prefetch` by the quicker of the last two verdicts: on a busy machine any single one may be delayed."""
        quicker = max(1e-6, min(seconds, self._last_seconds))
        self.prefetch = int(min(MAX_PREFETCH, PREFETCH_SECONDS / quicker))
        self._last_seconds = seconds


def least_busy(workers: Iterable[Worker]) -> Worker | None:
    """The worker to assign the next task to; None when none has room."""
    return min((worker for worker in workers if worker.room > 0), key=lambda worker: len(worker.tasks), default=None)


def keeper(workers: Iterable[Worker], task: Task) -> Worker | None:
    """The worker that keeps the generator of a task's episode, or is starting it; None if it has to be replayed."""
    if task.episode == NONE:
        return None
    holds = (w for w in workers if task.episode in w.episodes or any(t.episode == task.episode for t in w.tasks))
    return next(holds, None)


def any_idle(workers: Sequence[Worker], most: int) -> bool:
    """Whether a worker has no task, or another worker may be started."""
    return len(workers) < most or any(worker.room > 0 and not worker.tasks for worker in workers)


def with_waiting_tasks(workers: Iterable[Worker]) -> list[Worker]:
    """The workers with tasks that wait behind the one being judged."""
    return [worker for worker in workers if len(worker.tasks) > 1]


class Claims:
    """The pipe of one worker, made before it is forked."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)  # for both processes

    def offer(self, number: int) -> None:
        """In the supervisor: allow the worker to judge its `number`-th line, counted from 0."""
        os.write(self._write, bytes([number % NUMBERS]))

    def take_back(self) -> int:
        """In the supervisor: take back every line that the worker has not begun, and return their number. They are the
        last ones that were sent.
        """
        try:
            return len(os.read(self._read, NUMBERS))
        except BlockingIOError:
            return 0

    def keep_reading_end(self) -> None:
        """In the worker: close the writing end. Only then does reading end when the supervisor exits."""
        os.close(self._write)

    def claim(self) -> int | None:
        """In the worker: the number of the line to judge next, modulo `NUMBERS`; None after the last one."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        while True:
            poll.poll()
            with suppress(BlockingIOError):  # the supervisor has just taken it back
                number = os.read(self._read, 1)
                return number[0] if number else None

    def close(self) -> None:
        """Close both ends."""
        os.close(self._read)
        os.close(self._write)
