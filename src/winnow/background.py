"""Work in a thread beside the training thread: writing a checkpoint or a log, and sampling the next step."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


def begun(work: Callable[[], T], *, name: str) -> Future[T]:
    """The outcome of `work`, which starts now in a thread of this name.

    The thread is a daemon: a second signal can end the process even while the disk hangs. Where the system has no
    thread left, `work` is done before this returns.
    """
    outcome: Future[T] = Future()
    try:
        Thread(target=_fill, args=(outcome, work), name=name, daemon=True).start()
    except RuntimeError:
        _fill(outcome, work)
    return outcome


def _fill(outcome: Future[Any], work: Callable[[], Any]) -> None:
    try:
        outcome.set_result(work())
    except BaseException as error:  # of any type: who waits for the outcome raises it
        outcome.set_exception(error)
