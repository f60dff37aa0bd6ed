"""A checkpoint that a thread writes while training continues.

The tensors of a checkpoint (parameters, moments, a moving reference) change only in an optimizer update or in a probe's
reset. So nothing is copied: the thread may write while the next step plans, samples, verifies and computes log-probs.
Code that changes a tensor calls `wait` first.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread

from winnow.errors import StoppedBySignal
from winnow.state.checkpoint import Checkpoint

Save = Callable[[], Checkpoint]
OnSaved = Callable[["Future[Checkpoint]"], None]


class Saving:
    """At most one save at a time. Only the training thread calls its methods."""

    def __init__(self) -> None:
        self._under_way: tuple[Future[Checkpoint], OnSaved] | None = None

    def begin(self, save: Save, on_saved: OnSaved) -> None:
        """Start a save, once the one before it has ended. The next `wait` calls `on_saved` with its outcome."""
        self.wait()
        outcome: Future[Checkpoint] = Future()
        self._under_way = outcome, on_saved
        # A daemon: a second signal can end the process even while the disk hangs
        thread = Thread(target=_fill, args=(outcome, save), name="winnow-save", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left: save in this one
            _fill(outcome, save)

    def wait(self) -> None:
        """Wait until no save is in progress, and call `on_saved` for the one that has ended since the last call.

        Raises what `on_saved` raises. A signal that ends the wait (`StoppedBySignal`) does not end the save.
        """
        if self._under_way is None:
            return
        outcome, on_saved = self._under_way
        outcome.exception()  # waits
        try:
            on_saved(outcome)
        except StoppedBySignal:  # the next call of `wait` calls `on_saved` again
            raise
        except BaseException:
            self._under_way = None
            raise
        self._under_way = None


def _fill(outcome: Future[Checkpoint], save: Save) -> None:
    try:
        outcome.set_result(save())
    except BaseException as error:  # of any type: the training thread raises it
        outcome.set_exception(error)
