"""The save that is written beside training, by a thread of its own.

What a checkpoint reads (parameters, moments, a reference that moves) changes in an optimizer update and in a probe's
reset, and nowhere else. So nothing is copied: a save may be under way while the next step plans, samples, verifies and
computes log-probs, and whoever is about to change a tensor calls `wait` first.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread

from winnow.errors import Leave
from winnow.state.checkpoint import Checkpoint

Save = Callable[[], Checkpoint]
Tell = Callable[["Future[Checkpoint]"], None]


class Saving:
    """At most one save at a time. Its methods are called by the training thread alone."""

    def __init__(self) -> None:
        self._under_way: tuple[Future[Checkpoint], Tell] | None = None

    def begin(self, save: Save, tell: Tell) -> None:
        """Start a save, after the one before it; `wait` gives `tell` its outcome."""
        self.wait()
        outcome: Future[Checkpoint] = Future()
        self._under_way = outcome, tell
        # A daemon, so that a process whose user insists can end, whatever the disk does
        thread = Thread(target=_fill, args=(outcome, save), name="winnow-save", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system gives no thread
            _fill(outcome, save)

    def wait(self) -> None:
        """Return when no save is under way; one that has ended since the last call is told about, in this thread.

        Raises what `tell` raises. A signal that leaves this (`signals.Leave`) leaves the save under way.
        """
        if self._under_way is None:
            return
        outcome, tell = self._under_way
        outcome.exception()  # waits
        try:
            tell(outcome)
        except Leave:  # told again by the next call
            raise
        except BaseException:
            self._under_way = None
            raise
        self._under_way = None


def _fill(outcome: Future[Checkpoint], save: Save) -> None:
    try:
        outcome.set_result(save())
    except BaseException as error:  # whatever it is, the training thread raises it
        outcome.set_exception(error)
