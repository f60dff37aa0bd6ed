"""Lines of bytes over a non-blocking socket: the connection from trainer to supervisor, and from there to workers.

A line is `<ticket> <JSON>`. JSON is written with ASCII escapes, so NUL, lone surrogates and newlines inside a text
cannot break a line. Received bytes are never executed.
"""

from __future__ import annotations

import itertools
import math
import select
import socket
from collections import deque
from collections.abc import Iterable

_READ_BYTES = 1 << 18  # at once
_BUFFERS = 64  # written at once
_END = memoryview(b"\n")
LONGEST_VERDICT = 16 * 2**20  # bytes; no verdict needs more


class LineSocket:
    """One end of a stream socket, with buffers for unsent lines and for an incomplete received line.

    Unsent lines are not copied, and each received byte is scanned once, however long its line is.
    A line longer than `longest` bytes is dropped, and `overflowed` is then set.
    """

    def __init__(self, end: socket.socket, *, longest: float = math.inf) -> None:
        end.setblocking(False)
        self.closed = False  # by the other side
        self.overflowed = False
        self._longest = longest
        self._end = end
        self._outgoing: deque[memoryview] = deque()
        self._pieces: list[bytes] = []  # of the incomplete line
        self._bytes = 0  # length of the pieces

    @property
    def unsent(self) -> bool:
        """Whether a line, or a part of one, is still to be written."""
        return bool(self._outgoing)

    def send(self, *pieces: bytes) -> None:
        """Queue a line that consists of `pieces`; `flush` or `exchange` writes it."""
        self._outgoing += (*(memoryview(piece) for piece in pieces), _END)

    def exchange(self) -> list[bytes]:
        """Write as much as possible, and return the complete lines received. Sets `closed` at the end of the stream."""
        self.flush()
        return self._read()

    def flush(self) -> None:
        """Write as much as the socket accepts now."""
        try:
            while self._outgoing:
                sent = self._end.sendmsg(itertools.islice(self._outgoing, _BUFFERS))
                while self._outgoing and sent >= len(self._outgoing[0]):
                    sent -= len(self._outgoing.popleft())
                if sent:
                    self._outgoing[0] = self._outgoing[0][sent:]
        except BlockingIOError:
            pass
        except OSError:  # the other side has closed; its last lines can still be read
            self._outgoing.clear()

    def fileno(self) -> int:
        return self._end.fileno()

    @property
    def events(self) -> int:
        """The poll events that `wait` returns for."""
        return select.POLLIN | (select.POLLOUT if self._outgoing else 0)

    def close(self) -> None:
        self._end.close()

    def _read(self) -> list[bytes]:
        try:
            received = self._end.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            received = b""
        self.closed = not received
        first, *others = received.split(b"\n")
        self._keep(first)
        if not others:
            return []
        lines = [b"".join(self._pieces), *others[:-1]]
        self._pieces, self._bytes = [], 0
        self._keep(others[-1])
        return lines

    def _keep(self, piece: bytes) -> None:
        """Keep a piece of a line, or drop the line if it is longer than `longest`: endless output of a process must
        not fill this one's memory.
        """
        self._pieces.append(piece)
        self._bytes += len(piece)
        if self._bytes > self._longest:
            self.overflowed = True
            self._pieces, self._bytes = [], 0


def wait(sockets: Iterable[LineSocket], seconds: float) -> None:
    """Sleep until one of them can be read (or written, if lines are queued), or until the time is up."""
    poll = select.poll()
    for line_socket in sockets:
        number = line_socket.fileno()
        if number >= 0:  # else another thread has closed it
            poll.register(number, line_socket.events)
    poll.poll(max(0.0, seconds) * 1000)
