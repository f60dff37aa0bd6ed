"""Who judges what next, worked out by hand; no process runs here."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator

import pytest

from winnow.verify.dispatch import TASKS_PER_WORKER, Task, Worker, blocked, give_away, least_busy, someone_idle
from winnow.verify.line_socket import Wire


@pytest.fixture
def wire() -> Iterator[Wire]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Wire(ours)


def worker(wire: Wire, tasks: str = "", **fields: int) -> Worker:
    return Worker(1, wire, deque(Task(name.encode(), b"") for name in tasks), **fields)


def test_a_worker_that_nobody_knows_gets_one_task(wire: Wire):
    assert worker(wire).room == 1
    assert worker(wire, "a").room == 0


@pytest.mark.parametrize(("seconds", "room"), [(1e-5, 8), (0.0009, 6), (0.002, 3), (0.004, 2), (0.006, 1), (3.0, 1)])
def test_five_milliseconds_of_work_may_wait_in_a_pipe_and_at_most_seven_tasks(wire: Wire, seconds: float, room: int):
    one = worker(wire)
    one.took(seconds)
    assert one.room == room


def test_the_quicker_of_the_last_two_verdicts_counts(wire: Wire):
    one = worker(wire)
    rooms = []
    for seconds in (0.001, 1.0, 1.0, 0.001):
        one.took(seconds)
        rooms.append(one.room)
    assert rooms == [6, 6, 1, 6]


def test_no_worker_gets_more_tasks_than_it_may_answer(wire: Wire):
    one = worker(wire, "a", answered=TASKS_PER_WORKER - 3)
    one.took(1e-6)
    assert one.room == 2


def test_the_next_task_goes_to_the_least_busy_with_room(wire: Wire):
    full, quick, slow = worker(wire, "a"), worker(wire, "bc"), worker(wire, "d")
    quick.took(0.001)
    assert least_busy([full, quick, slow]) is quick
    assert least_busy([full, slow]) is None
    idle = worker(wire)
    assert least_busy([full, quick, idle]) is idle


def test_what_waits_is_given_away_in_order_and_its_worker_retires(wire: Wire):
    slow, busy = worker(wire, "abc"), worker(wire, "d")
    assert blocked([slow, busy]) == [slow]
    assert [task.ticket for task in give_away(slow)] == [b"b", b"c"]
    assert [task.ticket for task in slow.tasks] == [b"a"]
    slow.tasks.clear()
    assert slow.room == 0
    assert not someone_idle([slow, busy], most=2)
    assert someone_idle([slow, busy], most=3)
    assert someone_idle([worker(wire), busy], most=2)
