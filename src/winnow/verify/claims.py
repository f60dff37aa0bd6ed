"""Who judges a task that was sent to a worker in advance: the worker, or another one that the fork server gives it to.

A pipe holds one byte for each such task. The worker reads the byte before it begins the task, and the fork server reads
it to take the task back; the kernel gives a byte to one of them, so no task is judged twice, and none is lost.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress

NUMBERS = 256  # that tell tasks apart; far fewer lie between a worker and the fork server at any time


class Claims:
    """The pipe of one worker, made before it is forked."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)  # for both processes

    def offer(self, number: int) -> None:
        """In the fork server: the worker may judge its `number`-th line, counted from 0."""
        os.write(self._write, bytes([number % NUMBERS]))

    def take_back(self) -> int:
        """In the fork server: how many of the last lines the worker will not judge; it has begun all others."""
        try:
            return len(os.read(self._read, NUMBERS))
        except BlockingIOError:
            return 0

    def keep_reading_end(self) -> None:
        """In the worker: only the fork server writes, so that its end is noticed."""
        os.close(self._write)

    def claim(self) -> int | None:
        """In the worker: the number of the line to judge next, modulo `NUMBERS`; None once there will be none."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        while True:
            poll.poll()
            with suppress(BlockingIOError):  # taken back in this moment
                number = os.read(self._read, 1)
                return number[0] if number else None

    def close(self) -> None:
        """Both ends."""
        os.close(self._read)
        os.close(self._write)
