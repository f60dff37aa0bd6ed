"""Signals that end a run: what they ask for, and when a step may be left in the middle."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from winnow import ranks
from winnow.errors import Leave

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SENT_TWICE_WITHIN_SECONDS = 3.0


class Stop:
    """Has a signal asked the run to end? With `now`, it also leaves what `may_leave` allows to be left."""

    def __init__(self, *, now: bool) -> None:
        self.asked = False
        self._now = now
        self._may: Callable[[], bool] = _never

    @contextmanager
    def may_leave(self, may: Callable[[], bool]) -> Iterator[None]:
        """While this lasts, a signal raises Leave, wherever the main thread is, if `may()` says so at that moment."""
        try:
            self._may = may
            yield
        finally:
            self._may = _never

    def ask(self) -> None:
        """What a signal handler calls: in the main thread, between two of its instructions."""
        self.asked = True
        if self._now and self._may():
            raise Leave


@contextmanager
def stop_signals(*, now: bool) -> Iterator[Stop]:
    """The first SIGTERM, SIGINT or SIGHUP asks to stop; a second one acts as usual, but a second SIGHUP, which a shell
    and the system send together when a terminal closes, does nothing. What is ignored (nohup) stays ignored. Nor does a
    repetition within 3 seconds where a launcher passes on what the ranks are sent as well.

    Off the main thread there is nothing to catch.
    """
    stop = Stop(now=now)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
    twice, came = _sent_twice(), dict[int, float]()

    def handle(number: int, frame: object) -> None:
        asked_before, now = stop.asked, time.monotonic()
        first = came.setdefault(number, now)
        if number != signal.SIGHUP and not twice:
            signal.signal(number, before[signal.Signals(number)])
        elif number != signal.SIGHUP and now - first >= SENT_TWICE_WITHIN_SECONDS:
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)
        if not asked_before:
            stop.ask()

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _sent_twice() -> bool:
    """Whether a signal to all processes of a run reaches a rank twice, from its launcher too. The ranks that winnow
    starts have sessions of their own, and get each signal once.
    """
    return ranks.asked_for() > 1 and os.getsid(0) != os.getpid()


def _never() -> bool:
    return False
