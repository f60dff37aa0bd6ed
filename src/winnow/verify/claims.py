"""Decides whether a worker judges a task that was sent to it in advance, or the supervisor takes the task back.

A pipe contains one byte for each such task. The worker reads the byte before it begins the task, and the supervisor
reads it to take the task back. Only one of the two reads gets the byte, so no task is judged twice, and none is lost.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress

NUMBERS = 256  # values of a byte; far fewer tasks are between a worker and the supervisor at any time


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
