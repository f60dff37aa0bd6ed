"""Work in a thread beside the training thread: writing a checkpoint or a log, and sampling the next step."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundWork(Generic[T]):
    """A function that a thread calls once, and its outcome.

    It is made before it is started, so that its owner already has it when a signal interrupts the start. The thread is
    a daemon: a second signal can end the process even while the disk hangs.
    """

    def __init__(self, function: Callable[[], T], *, name: str) -> None:
        self.function = function
        self.outcome: Future[T] = Future()
        self._name = name
        self._started = False

    def start(self) -> None:
        """Start a thread of this name. Where the system has no thread left, call the function before this returns."""
        try:
            Thread(target=self._in_thread, name=self._name, daemon=True).start()
        except RuntimeError:
            self._call(Exception)  # a signal ends the start, as it would end any other code of this thread
        self._started = True

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the function has returned or raised, at most so many seconds.

        If `start` was interrupted before the function was called, `outcome` is cancelled and it is never called.
        """
        if self._started or not self.outcome.cancel():
            wait([self.outcome], seconds)

    def _in_thread(self) -> None:
        if self.outcome.set_running_or_notify_cancel():
            self._call(BaseException)

    def _call(self, caught: type[BaseException]) -> None:
        try:
            self.outcome.set_result(self.function())
        except caught as error:  # who reads the outcome raises it
            self.outcome.set_exception(error)
