"""Lines of bytes over a socket that never blocks: how the trainer, the zygote and its workers talk.

A line is `<ticket> <JSON>`. JSON is written with ASCII escapes, so NUL, lone surrogates and newlines inside a text
cannot break a line, and no byte that arrives is ever executed.
"""

from __future__ import annotations

import math
import select
import socket
from collections.abc import Iterable

_PIECE = 1 << 18  # bytes read at once
LONGEST_VERDICT = 16 * 2**20  # bytes; the other side is not believed to need more


class Wire:
    """One end of a stream socket, with what could not be written yet and what has not made a whole line yet.

    A line that comes longer than `longest` bytes is thrown away, and `flooded` says so.
    """

    def __init__(self, end: socket.socket, *, longest: float = math.inf) -> None:
        end.setblocking(False)
        self.closed = False  # by the other side
        self.flooded = False
        self._longest = longest
        self._end = end
        self._outgoing = bytearray()
        self._incoming = bytearray()

    def send(self, line: bytes) -> None:
        """Queue a line; `flush` or `exchange` writes it."""
        self._outgoing += line
        self._outgoing += b"\n"

    def exchange(self) -> list[bytes]:
        """Write what fits, and return the whole lines that have come. Sets `closed` at the end of the stream."""
        self.flush()
        return self._read()

    def flush(self) -> None:
        """Write what fits now."""
        try:
            while self._outgoing:
                sent = self._end.send(self._outgoing)
                del self._outgoing[:sent]
        except BlockingIOError:
            pass
        except OSError:  # the other side is gone; what it said before is still to be read
            self._outgoing.clear()

    def fileno(self) -> int:
        return self._end.fileno()

    @property
    def events(self) -> int:
        """What `wait` should wake for."""
        return select.POLLIN | (select.POLLOUT if self._outgoing else 0)

    def close(self) -> None:
        self._end.close()

    def _read(self) -> list[bytes]:
        try:
            piece = self._end.recv(_PIECE)
        except BlockingIOError:
            return []
        except OSError:
            piece = b""
        self.closed = not piece
        self._incoming += piece
        if b"\n" not in piece:
            self._stem()
            return []
        *lines, rest = self._incoming.split(b"\n")
        self._incoming = rest
        return [bytes(line) for line in lines]

    def _stem(self) -> None:
        """Whoever writes without end does not fill this process's memory."""
        if len(self._incoming) > self._longest:
            self.flooded = True
            self._incoming.clear()


def wait(wires: Iterable[Wire], seconds: float) -> None:
    """Sleep until any of them can be read (or written, where something is queued), or the time is up."""
    poll = select.poll()
    for wire in wires:
        if wire.fileno() >= 0:
            poll.register(wire.fileno(), wire.events)
    poll.poll(max(0.0, seconds) * 1000)
