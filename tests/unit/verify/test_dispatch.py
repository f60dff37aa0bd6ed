"""Which worker judges which task next, worked out by hand; no process runs here."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator

import pytest

from winnow.verify.dispatch import (
    TASKS_PER_WORKER,
    Task,
    Worker,
    any_idle,
    least_busy,
    release_waiting,
    with_waiting_tasks,
)
from winnow.verify.line_socket import LineSocket


@pytest.fixture
def line_socket() -> Iterator[LineSocket]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield LineSocket(ours)


def worker(line_socket: LineSocket, tasks: str = "", **fields: int) -> Worker:
    return Worker(1, line_socket, deque(Task(name.encode(), b"") for name in tasks), **fields)


def test_a_worker_without_a_verdict_gets_one_task(line_socket: LineSocket):
    assert worker(line_socket).room == 1
    assert worker(line_socket, "a").room == 0


@pytest.mark.parametrize(("seconds", "room"), [(1e-5, 8), (0.0009, 6), (0.002, 3), (0.004, 2), (0.006, 1), (3.0, 1)])
def test_five_milliseconds_of_work_are_prefetched_and_at_most_seven_tasks(
    line_socket: LineSocket, seconds: float, room: int
):
    one = worker(line_socket)
    one.record_verdict(seconds)
    assert one.room == room


def test_the_quicker_of_the_last_two_verdicts_counts(line_socket: LineSocket):
    one = worker(line_socket)
    rooms = []
    for seconds in (0.001, 1.0, 1.0, 0.001):
        one.record_verdict(seconds)
        rooms.append(one.room)
    assert rooms == [6, 6, 1, 6]


def test_no_worker_gets_more_tasks_than_it_may_answer(line_socket: LineSocket):
    one = worker(line_socket, "a", answered=TASKS_PER_WORKER - 3)
    one.record_verdict(1e-6)
    assert one.room == 2


def test_the_next_task_goes_to_the_least_busy_with_room(line_socket: LineSocket):
    full, quick, slow = worker(line_socket, "a"), worker(line_socket, "bc"), worker(line_socket, "d")
    quick.record_verdict(0.001)
    assert least_busy([full, quick, slow]) is quick
    assert least_busy([full, slow]) is None
    idle = worker(line_socket)
    assert least_busy([full, quick, idle]) is idle


def test_waiting_tasks_are_released_in_order_and_their_worker_retires(line_socket: LineSocket):
    slow, busy = worker(line_socket, "abc"), worker(line_socket, "d")
    assert with_waiting_tasks([slow, busy]) == [slow]
    assert [task.ticket for task in release_waiting(slow)] == [b"b", b"c"]
    assert [task.ticket for task in slow.tasks] == [b"a"]
    slow.tasks.clear()
    assert slow.room == 0
    assert not any_idle([slow, busy], most=2)
    assert any_idle([slow, busy], most=3)
    assert any_idle([worker(line_socket), busy], most=2)
