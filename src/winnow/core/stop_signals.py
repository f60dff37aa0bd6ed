"""Signals that end a run. The first one requests a stop, and may end a step in the middle if nothing would be lost."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from winnow import ranks
from winnow.errors import StoppedBySignal

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SENT_TWICE_WITHIN_SECONDS = 3.0
NOTICE = b"\nthe run stops after this step at the latest, and is saved; the same signal again ends it without saving\n"


class Stop:
    """Whether a signal has requested the end of a run. With `now`, the signal also ends at once a block of `may_leave`
    whose `may()` is true.
    """

    def __init__(self, *, now: bool) -> None:
        self.requested = False
        self._now = now
        self._may: Callable[[], bool] | None = None

    @contextmanager
    def may_leave(self, may: Callable[[], bool]) -> Iterator[None]:
        """A block in which, with `now`, a signal raises StoppedBySignal if `may()` is true at that moment.

        The exception is raised wherever the main thread is.
        """
        try:
            self._may = may
            yield
        finally:
            self._may = None

    def request(self) -> None:
        """Request the end. A signal handler calls it, in the main thread between two instructions."""
        self.requested = True
        if self._now and self._may is not None and self._may():
            raise StoppedBySignal


@contextmanager
def stop_signals(*, now: bool) -> Iterator[Stop]:
    """A block in which the first SIGTERM, SIGINT or SIGHUP requests a stop. The second signal of the same kind has its
    usual effect.

    There are three exceptions. A second SIGHUP has no effect, as shell and system both send one when a terminal closes.
    A signal that was ignored before (nohup) stays ignored. With several ranks a repetition within 3 seconds has no
    effect, as a launcher passes signals on that its ranks may also get directly.

    In a thread other than the main one no handler can be set, so no signal is caught.
    """
    stop = Stop(now=now)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
    # Directly, where a manager signals all processes of a job, and passed on by a launcher. A parent that is killed
    # sends SIGINT once for each of its threads.
    twice, came = ranks.launched_count() > 1, dict[int, float]()

    def handle(number: int, frame: object) -> None:
        requested_before, now = stop.requested, time.monotonic()
        first = came.setdefault(number, now)
        if number != signal.SIGHUP and not twice:
            signal.signal(number, before[signal.Signals(number)])
        elif number != signal.SIGHUP and now - first >= SENT_TWICE_WITHIN_SECONDS:
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)
        if not requested_before:
            if ranks.is_writer():
                with contextlib.suppress(OSError):  # of a terminal that closed; print could wait for a lock
                    os.write(2, NOTICE)
            stop.request()

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
