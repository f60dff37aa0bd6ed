"""Who judges what next: the plan of a zygote that hands tasks to its workers, without processes or clocks of its own.

A worker's pipe may hold its next tasks, so that it need not wait for the zygote, which is what quick verdicts would
spend most of their time on. It holds no more than `AHEAD_SECONDS` of work at the pace of the worker's last verdicts,
and when one turns out slow all the same, while another worker is idle, what waits behind it is given away. A pipe
cannot be emptied from outside, so the slow worker then retires with the verdict in hand.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from winnow.verify.line_socket import Wire

MOST_AHEAD = 7  # tasks
AHEAD_SECONDS = 0.005
SLOW_SECONDS = 0.02  # a verdict that takes longer shall not have others wait for it
TASKS_PER_WORKER = 2000  # then a fresh one takes over, whatever the reward has leaked


@dataclass
class Task:
    """One line to a worker."""

    ticket: bytes
    line: bytes
    crashed: bool = False  # once already


@dataclass(eq=False)
class Worker:
    """What the zygote knows of one of its forks."""

    pid: int
    wire: Wire
    tasks: deque[Task] = field(default_factory=deque)  # given and unanswered; the first is being judged
    started: float = 0.0  # when the first of them was
    answered: int = 0
    ahead: int = 0  # tasks that may wait behind the one in hand
    warm: bool = False  # it has judged before, so its imports are done
    retiring: bool = False  # gets no more tasks
    _pace: float = math.inf  # seconds that its last verdict took

    @property
    def room(self) -> int:
        """How many more tasks it may be given."""
        if self.retiring:
            return 0
        return min(1 + self.ahead, TASKS_PER_WORKER - self.answered) - len(self.tasks)

    def took(self, seconds: float) -> None:
        """Its last verdict did. Of the last two the quicker counts: on a busy machine any may have to wait its turn."""
        self.ahead = int(min(MOST_AHEAD, AHEAD_SECONDS / max(1e-6, min(seconds, self._pace))))
        self._pace = seconds


def least_busy(workers: Iterable[Worker]) -> Worker | None:
    """The one to give the next task to; None when none has room."""
    return min((worker for worker in workers if worker.room > 0), key=lambda worker: len(worker.tasks), default=None)


def someone_idle(workers: Sequence[Worker], most: int) -> bool:
    """A worker without a task, or room for another worker."""
    return len(workers) < most or any(worker.room > 0 and not worker.tasks for worker in workers)


def blocked(workers: Iterable[Worker]) -> list[Worker]:
    """Workers with tasks that wait behind the one in hand."""
    return [worker for worker in workers if len(worker.tasks) > 1]


def give_away(worker: Worker) -> list[Task]:
    """The tasks behind the one in hand, in order; the worker retires once that is done."""
    first, *rest = worker.tasks
    worker.tasks = deque([first])
    worker.retiring = True
    return rest
