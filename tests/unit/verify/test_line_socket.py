"""Lines over a socket: whole, in order, and at a cost that grows with their bytes alone."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from winnow.verify.line_socket import LineSocket, wait


class Counted(bytes):
    """Counts the bytes that are searched for the end of a line."""

    searched = 0

    def split(self, *how: Any) -> Any:
        Counted.searched += len(self)
        return super().split(*how)


class SlowEnd:
    """A socket that moves a few bytes at a time."""

    def __init__(self, incoming: bytes = b"", at_once: int = 1000) -> None:
        self.incoming, self.at_once = incoming, at_once
        self.taken = bytearray()
        self.offered = 0
        self.blocked = False

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def recv(self, most: int) -> bytes:
        piece, self.incoming = self.incoming[: self.at_once], self.incoming[self.at_once :]
        return Counted(piece)

    def sendmsg(self, buffers: Iterable[memoryview]) -> int:
        self.blocked = not self.blocked
        if self.blocked:
            raise BlockingIOError
        whole = b"".join(buffers)[: self.at_once]
        self.taken += whole
        return len(whole)


def received(end: SlowEnd) -> list[bytes]:
    line_socket, lines = LineSocket(end), []  # type: ignore[arg-type]
    while not line_socket.closed:
        lines += line_socket.exchange()
    return lines


def test_lines_arrive_whole_however_they_are_cut() -> None:
    sent = [b"", b"1 a", b"2 " + b"b" * 5000, b"", b"3 c"]
    for at_once in (1, 2, 7, 5000, 10**6):
        assert received(SlowEnd(b"\n".join((*sent, b"")), at_once)) == sent


@pytest.mark.parametrize("length", [10**5, 10**6])
def test_a_byte_that_arrives_is_looked_at_once_however_long_its_line_is(length: int) -> None:
    Counted.searched = 0
    (line,) = received(SlowEnd(b"x" * length + b"\n"))
    assert len(line) == length
    assert Counted.searched == length + 1


def test_queued_lines_are_written_without_a_copy() -> None:
    end = SlowEnd()
    line_socket = LineSocket(end)  # type: ignore[arg-type]
    lines = [b"%d " % n + b"x" * 300 * n for n in range(100)]
    for line in lines:
        line_socket.send(line)
    assert {id(view.obj) for view in list(line_socket._outgoing)[::2]} == set(map(id, lines))
    while line_socket.unsent:
        line_socket.flush()
    assert bytes(end.taken) == b"\n".join((*lines, b""))


@pytest.fixture
def pair() -> Iterator[tuple[LineSocket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield LineSocket(ours, longest=1000), theirs


def test_a_line_that_is_too_long_is_dropped_and_noticed(pair: tuple[LineSocket, socket.socket]) -> None:
    line_socket, theirs = pair
    theirs.sendall(b"a\n" + b"x" * 1001)
    assert line_socket.exchange() == [b"a"]
    assert line_socket.overflowed


def test_the_other_side_s_end_is_noticed(pair: tuple[LineSocket, socket.socket]) -> None:
    line_socket, theirs = pair
    assert line_socket.exchange() == []
    theirs.sendall(b"a\n")
    theirs.close()
    line_socket.send(b"b")
    assert line_socket.exchange() == [b"a"]
    assert not line_socket.unsent
    line_socket.exchange()
    assert line_socket.closed


class ClosedMeanwhile:
    """A socket that another thread closes between two looks at it."""

    def __init__(self, end: socket.socket) -> None:
        self._numbers = iter([end.fileno(), -1])
        self.events = select.POLLIN

    def fileno(self) -> int:
        return next(self._numbers)


def test_a_socket_that_is_closed_while_it_is_waited_for_is_no_error(pair: tuple[LineSocket, socket.socket]) -> None:
    wait([ClosedMeanwhile(pair[1])], 0.0)  # type: ignore[list-item]
