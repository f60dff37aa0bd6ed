"""Which worker judges which task next; expected values by hand, without processes."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator

import pytest

from winnow.verify.dispatch import (
    CLOSE,
    MOST_EPISODES,
    NONE,
    PREFETCH_BYTES,
    TASKS_PER_WORKER,
    Claims,
    Task,
    Worker,
    any_idle,
    keeper,
    least_busy,
    with_waiting_tasks,
)
from winnow.verify.line_socket import LineSocket


@pytest.fixture
def line_socket() -> Iterator[LineSocket]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield LineSocket(ours)


@pytest.fixture
def claims() -> Iterator[Claims]:
    pipe = Claims()
    yield pipe
    pipe.close()


@pytest.fixture(autouse=True)
def pipes() -> Iterator[None]:
    """Closes those that `worker` opens."""
    yield
    while _pipes:
        _pipes.pop().close()


_pipes: list[Claims] = []


def task(ticket: bytes, body: bytes = b"{}", *, episode: bytes = NONE, turns: int = 1) -> Task:
    return Task(ticket=ticket, episode=episode, turns=turns, body=body)


def worker(line_socket: LineSocket, tasks: str = "", *, claims: Claims | None = None, **fields: int) -> Worker:
    if claims is None:
        claims = Claims()
        _pipes.append(claims)
    made = Worker(1, line_socket, claims, deque(), **fields)
    for name in tasks:
        made.assign(task(name.encode(), name.encode()))
    return made


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


def test_nothing_is_sent_in_advance_behind_many_bytes(line_socket: LineSocket):
    one = worker(line_socket)
    one.record_verdict(1e-6)
    for room in (8, 7, 6):
        assert one.room == room
        one.assign(task(b"7", b"x" * (PREFETCH_BYTES // 3)))
    assert one.room == 5
    one.assign(task(b"7", b"x"))
    one.assign(task(b"7", b"xx"))
    assert one.room == 0
    one.tasks.clear()
    assert one.room == 8


def test_what_a_worker_has_not_begun_is_taken_back_in_order(line_socket: LineSocket, claims: Claims):
    slow, busy = worker(line_socket, "abc", claims=claims, prefetch=2), worker(line_socket, "d")
    assert claims.claim() == 0
    assert with_waiting_tasks([slow, busy]) == [slow]
    assert [task.ticket for task in slow.take_back()] == [b"b", b"c"]
    assert [task.ticket for task in slow.tasks] == [b"a"]
    assert slow.take_back() == []
    assert slow.room == 0
    slow.tasks.clear()
    assert slow.room == 1
    slow.assign(task(b"e", b"e"))
    assert claims.claim() == 3  # the lines 1 and 2 are not its own any more
    assert any_idle([worker(line_socket), busy], most=2)


def test_whether_any_is_idle(line_socket: LineSocket):
    busy, other = worker(line_socket, "a"), worker(line_socket, "b")
    assert not any_idle([busy, other], most=2)
    assert any_idle([busy, other], most=3)
    assert any_idle([worker(line_socket), busy], most=2)


REPLIED, ENDED = b'{"reply":"higher"}', b'{"reward":1.0}'


def test_a_line_of_the_trainer_is_a_task():
    assert Task.of(b'7 12 3 {"a": "b c"}') == task(b"7", b'{"a": "b c"}', episode=b"12", turns=3)
    assert not Task.of(b"7 - 1 {}").closes
    assert Task.of(b"- 12 0 -").closes


def test_the_worker_that_has_replied_keeps_the_generator_until_the_episode_ends(line_socket: LineSocket):
    one, other = worker(line_socket), worker(line_socket)
    one.assign(task(b"1", episode=b"5"))
    assert keeper([other, one], task(b"2", episode=b"5")) is one, "it is starting the generator"
    assert one.settle(REPLIED).ticket == b"1"
    assert keeper([other, one], task(b"2", episode=b"5")) is one
    assert keeper([other, one], task(b"2", episode=b"6")) is None
    assert keeper([other, one], task(b"2")) is None, "a reward has no episode"
    one.assign(task(b"2", episode=b"5", turns=2))
    one.settle(ENDED)
    assert one.episodes == set()
    assert keeper([other, one], task(b"3", episode=b"5")) is None


def test_a_replay_takes_all_turns_and_the_next_turn_of_a_kept_generator_one(line_socket: LineSocket):
    one = worker(line_socket)
    one.assign(task(b"1", episode=b"5", turns=3))
    assert one.turns == 3
    one.settle(REPLIED)
    one.assign(task(b"2", episode=b"5", turns=4))
    assert one.turns == 1
    one.settle(REPLIED)
    one.assign(task(b"-", CLOSE, episode=b"5", turns=0))
    assert one.turns == 1
    one.settle(b"{}")
    assert one.episodes == set()


def test_a_worker_keeps_a_bounded_number_of_generators(line_socket: LineSocket):
    one = worker(line_socket)
    one.episodes = {b"%d" % number for number in range(MOST_EPISODES)}
    one.assign(task(b"1", episode=b"new"))
    assert not one.tasks[0].kept
    one.settle(REPLIED)
    assert b"new" not in one.episodes
    one.assign(task(b"2", episode=b"7"))
    assert one.tasks[0].kept
    one.settle(REPLIED)
    assert b"7" in one.episodes


def test_a_worker_is_not_replaced_while_it_keeps_generators(line_socket: LineSocket):
    one = worker(line_socket, answered=TASKS_PER_WORKER)
    assert (one.room, one.is_spent) == (0, True)
    one.episodes = {b"5"}
    assert (one.room, one.is_spent) == (1, False)
    one.assign(task(b"1", episode=b"5"))
    one.settle(ENDED)
    assert one.is_spent


def test_a_spent_worker_gets_what_waits_for_it(line_socket: LineSocket):
    """The end of an episode whose last turn was its last verdict: no other worker would take it."""
    one = worker(line_socket, answered=TASKS_PER_WORKER)
    one.waiting.append(task(NONE, CLOSE, episode=b"5"))
    assert (one.room, one.is_spent) == (1, False)
    one.assign(one.waiting.popleft())
    one.settle(ENDED)
    assert one.is_spent
