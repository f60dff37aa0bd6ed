"""The state of a run between two steps, and its checkpoints: when one is due, after a signal, and after an error.

A checkpoint that is due is written by a thread while the next step computes (progress.py). Training waits for the last
checkpoint of a run. A signal may end a step in the middle only where nothing of it would be lost.

The tensors of a checkpoint (parameters, moments, reference) change only in optimizer updates, and in the reset of a
probe (see `untouched`). Until the first update of a step they are therefore those of the boundary before it. A step
changes the rest earlier; that is small, and a `Boundary` has a copy of it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from winnow import ranks
from winnow.errors import StoppedBySignal
from winnow.state import checkpoint
from winnow.state.folder import path_of, paths
from winnow.state.history import History
from winnow.training.run import Progress, Run

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SENT_TWICE_WITHIN_SECONDS = 3.0


class Stop:
    """Whether a signal has requested the end of a run. With `now`, the signal also ends at once a block of `may_leave`
    whose `may()` is true.
    """

    def __init__(self, *, now: bool) -> None:
        self.requested = False
        self._now = now
        self._may: Callable[[], bool] = _never

    @contextmanager
    def may_leave(self, may: Callable[[], bool]) -> Iterator[None]:
        """A block in which, with `now`, a signal raises StoppedBySignal if `may()` is true at that moment.

        The exception is raised wherever the main thread is.
        """
        try:
            self._may = may
            yield
        finally:
            self._may = _never

    def request(self) -> None:
        """Request the end. A signal handler calls it, in the main thread between two instructions."""
        self.requested = True
        if self._now and self._may():
            raise StoppedBySignal


@contextmanager
def stop_signals(*, now: bool) -> Iterator[Stop]:
    """A block in which the first SIGTERM, SIGINT or SIGHUP requests a stop. The second signal of the same kind has its
    usual effect.

    There are three exceptions. A second SIGHUP has no effect, as shell and system both send one when a terminal closes.
    A signal that was ignored before (nohup) stays ignored. Where a launcher passes signals on that its ranks also get
    directly, a repetition within 3 seconds has no effect.

    In a thread other than the main one no handler can be set, so no signal is caught.
    """
    stop = Stop(now=now)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
    twice, came = _sent_twice(), dict[int, float]()

    def handle(number: int, frame: object) -> None:
        requested_before, now = stop.requested, time.monotonic()
        first = came.setdefault(number, now)
        if number != signal.SIGHUP and not twice:
            signal.signal(number, before[signal.Signals(number)])
        elif number != signal.SIGHUP and now - first >= SENT_TWICE_WITHIN_SECONDS:
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)
        if not requested_before:
            stop.request()

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _sent_twice() -> bool:
    """Whether a rank gets a signal to the process group twice: directly, and passed on by its launcher.

    Ranks that winnow starts are in separate sessions and get each signal once.
    """
    return ranks.launched_count() > 1 and os.getsid(0) != os.getpid()


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Boundary:
    """A run after `step` steps, apart from its tensors."""

    step: int
    taken: int  # updates of this process so far: as long as this number holds, so do the tensors
    learner: Mapping[str, Any]
    critic: Mapping[str, Any]  # of a separate value model; else empty
    history: History
    verifiers: Mapping[str, Any]
    clock: Mapping[str, Any]

    @classmethod
    def of(cls, run: Run, progress: Progress, step: int) -> Self:
        return cls(
            step=step,
            taken=run.taken,
            learner=run.learner.counts(),
            critic=run.critic.counts() if run.critic else {},
            history=progress.history.snapshot(),
            verifiers=run.verifiers.state_dict(),
            clock=progress.clock.state_dict(),
        )


def untouched(run: Run, before: Boundary) -> bool:
    """Whether parameters and moments are still those of the boundary.

    A reset by a probe (`probe.outer_reset`) does not count, as a resume repeats it with the same result.
    """
    return run.taken == before.taken


def reached(run: Run, progress: Progress, before: Boundary) -> Boundary | None:
    """The newest boundary that can be saved now: the one after the step if the step is updated and logged, else the one
    before it. None after the first update of a step that is not logged, whose weights belong to no step.
    """
    if progress.written == before.step:
        return Boundary.of(run, progress, before.step + 1)
    return before if untouched(run, before) else None


def save(run: Run, progress: Progress, at: Boundary, *, keep: int = 0) -> checkpoint.Checkpoint:
    """Write the checkpoint of a boundary that `reached` allows, and keep `keep` older ones more than configured.

    Raises as `checkpoint.save`.
    """
    write = _prepared(run, progress, at, keep)
    with ranks.together("saving"):
        progress.saved = write()
    return progress.saved


def begin_save(
    run: Run, progress: Progress, at: Boundary, done: Callable[[Callable[[], checkpoint.Checkpoint]], None]
) -> None:
    """Start to write the checkpoint of a boundary while training continues; without `checkpoint.background`, wait for
    its end.

    The next `progress.saving.wait` calls `done` with a function, which returns the checkpoint or raises as
    `checkpoint.save`. Raises RunFolderError where the logs cannot be synced.
    """

    def finish(outcome: Future[checkpoint.Checkpoint]) -> None:
        if outcome.exception() is None:
            progress.saved = outcome.result()
        done(outcome.result)

    progress.saving.begin(_prepared(run, progress, at), finish)
    if not run.config.checkpoint.background:
        progress.saving.wait()


def _prepared(run: Run, progress: Progress, at: Boundary, keep: int = 0) -> Callable[[], checkpoint.Checkpoint]:
    """A function that writes the checkpoint of a boundary, for any thread.

    Everything but the tensors is read here, before training continues to change it.
    """
    progress.saving.wait()
    # The logs first: a checkpoint on the disk relies on the rows before it
    logs = ranks.from_writer(lambda: run.logbook.sync(at.step), doing="syncing the logs")
    clock = {"clock": at.clock} if at.clock else {}
    critic = {"critic": at.critic} if at.critic else {}
    state = {"optimizer": at.learner, **critic, "history": at.history.state_dict(), "verifiers": at.verifiers, **clock}
    values = run.critic.state() if run.critic else {}
    tensors, shares = {**run.learner.state(), **values}, run.learner.shares(values)
    known, beside = progress.saved, run.learner.on_side_stream()

    def write() -> checkpoint.Checkpoint:
        with beside:
            written = shares.written(save_whole)
        return written or checkpoint.Checkpoint(path_of(run.folder, at.step), at.step)

    def save_whole() -> checkpoint.Checkpoint:
        return checkpoint.save(
            run.folder,
            at.step,
            write_model=lambda path: run.learner.write_model(path, run.files, shares),
            tensors=tensors,
            read=shares.read,
            state=state,
            keep_last=run.config.checkpoint.keep_last + keep,
            logs=logs,
            known=known,
        )

    return write


@contextmanager
def rescued(run: Run, progress: Progress, before: Boundary) -> Iterator[None]:
    """An error that leaves this block gets a note of what was saved, and is raised again."""
    try:
        yield
    except Exception as error:
        error.add_note(_rescue(run, progress, before))
        raise


def _rescue(run: Run, progress: Progress, before: Boundary) -> str:
    """Save what is intact, and return a note about it.

    One checkpoint more than configured is kept: the saved weights may have caused the error, and a resume then needs
    the checkpoint before.
    """
    if not ranks.all_failed():
        return f"Other ranks were still at work, so nothing was saved. {_elsewhere(run.folder)}"
    at = reached(run, progress, before)
    if at is None:
        return (
            f"Step {before.step} stopped after its first update and before it was logged. Its weights are those of no "
            f"step and were not saved. {_elsewhere(run.folder)}"
        )
    if at.step == 0:
        return "No step was finished, so there was nothing to save: start the run again."
    try:
        ranks.from_writer(lambda: run.logbook.truncate_from(at.step, but_evaluation=True), doing="cutting the logs")
        path = save(run, progress, at, keep=1).path
    except Exception as failure:  # of any type: it must not replace the error that ended the run
        return f"The weights after {at.step} steps could not be saved ({failure}). {_elsewhere(run.folder)}"
    return (
        f"The weights after {at.step} steps are saved in {path}: resume the run to continue from there, or delete that "
        f"folder to continue from the one before"
    )


def _elsewhere(folder: Path) -> str:
    saved = paths(folder)
    return f"Resume the run to continue from {saved[-1]}" if saved else "There is no earlier checkpoint"
