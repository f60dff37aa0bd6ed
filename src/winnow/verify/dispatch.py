"""Which worker judges which task next: the rules of the fork server, without processes or clocks of their own.

A worker may be sent tasks in advance (prefetch), so that it need not wait for the fork server between quick verdicts,
which would cost more than the verdicts themselves. The tasks sent in advance are at most `PREFETCH_SECONDS` of work at
the speed of the worker's last verdicts. Where one verdict turns out slow all the same while another worker is idle, the
tasks that wait behind it are assigned to others. They cannot be removed from the slow worker's socket, so that worker
is retired after the verdict it is working on.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from winnow.verify.line_socket import LineSocket

MAX_PREFETCH = 7  # tasks
PREFETCH_SECONDS = 0.005
SLOW_SECONDS = 0.02  # no task waits behind a verdict that takes longer while another worker is idle
TASKS_PER_WORKER = 2000  # then a fresh one takes over, which bounds what a leaking reward can take


@dataclass
class Task:
    """One line to a worker."""

    ticket: bytes
    line: bytes
    crashed: bool = False  # whether it has crashed a worker before


@dataclass(eq=False)
class Worker:
    """The fork server's record of one of its worker processes."""

    pid: int
    socket: LineSocket
    tasks: deque[Task] = field(default_factory=deque)  # assigned and unanswered; the first is being judged
    started: float = 0.0  # time.monotonic() at which judging the first of them began
    answered: int = 0
    prefetch: int = 0  # tasks that may wait behind the one being judged
    warm: bool = False  # it has given a verdict before, so its imports are done
    retiring: bool = False  # it gets no more tasks
    _last_seconds: float = math.inf  # of its last verdict

    @property
    def room(self) -> int:
        """How many more tasks may be assigned to it."""
        if self.retiring:
            return 0
        return min(1 + self.prefetch, TASKS_PER_WORKER - self.answered) - len(self.tasks)

    def record_verdict(self, seconds: float) -> None:
        """Set `prefetch` by the quicker of the last two verdicts: on a busy machine any single one may be delayed."""
        quicker = max(1e-6, min(seconds, self._last_seconds))
        self.prefetch = int(min(MAX_PREFETCH, PREFETCH_SECONDS / quicker))
        self._last_seconds = seconds


def least_busy(workers: Iterable[Worker]) -> Worker | None:
    """The worker to assign the next task to; None when none has room."""
    return min((worker for worker in workers if worker.room > 0), key=lambda worker: len(worker.tasks), default=None)


def any_idle(workers: Sequence[Worker], most: int) -> bool:
    """Whether a worker has no task, or another worker may be started."""
    return len(workers) < most or any(worker.room > 0 and not worker.tasks for worker in workers)


def with_waiting_tasks(workers: Iterable[Worker]) -> list[Worker]:
    """The workers with tasks that wait behind the one being judged."""
    return [worker for worker in workers if len(worker.tasks) > 1]


def release_waiting(worker: Worker) -> list[Task]:
    """The tasks behind the one being judged, in order, for other workers; this one is retired after that verdict."""
    first, *rest = worker.tasks
    worker.tasks = deque([first])
    worker.retiring = True
    return rest
