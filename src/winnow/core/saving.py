"""The checkpoints of a run: the state between two steps, which one can be saved, and how, also after an error.

A checkpoint that is due is written by a thread while the next step computes (progress.py). Training waits for the last
checkpoint of a run.

The tensors of a checkpoint (parameters, moments, reference) change only in optimizer updates, and in the reset of a
probe (see `untouched`). Until the first update of a step they are therefore those of the boundary before it. A step
changes the rest earlier; that is small, and a `Boundary` has a copy of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from winnow import ranks
from winnow.core.protocols import SavedCheckpoint
from winnow.core.run import Progress, Run
from winnow.errors import RankError, RunFolderError, format_error
from winnow.state import checkpoint
from winnow.state.folder import path_of, paths
from winnow.state.history import History
from winnow.state.pending import PendingGroups

SECONDS_BETWEEN = 10.0  # two attempts to save on a full disk


@dataclass(frozen=True)
class Boundary:
    """A run after `step` steps, apart from its tensors."""

    step: int
    taken: int  # updates of this process so far: as long as this number holds, so do the tensors
    history: History
    pending: PendingGroups | None  # the rollouts of the next step, with rollout.ahead
    state: Mapping[str, Any]  # of the other parts of the run, as a checkpoint has it

    @classmethod
    def of(cls, run: Run, progress: Progress, step: int) -> Self:
        clock = progress.clock.state_dict()
        state = {
            "optimizer": run.learner.counts(),
            **({"critic": run.critic.counts()} if run.critic else {}),
            "history": {},  # the place of `history` in the file
            "verifiers": run.verifiers.state_dict(),
            **({"clock": clock} if clock else {}),
            **({"sizes": progress.sizes.state_dict()} if progress.sizes else {}),
        }
        return cls(step, run.taken, progress.history.snapshot(), progress.ahead.pending, state)


def untouched(run: Run, before: Boundary) -> bool:
    """Whether parameters and moments are still those of the boundary.

    A reset by a probe (`probe.outer_reset`) does not count, as a resume repeats it with the same result.
    """
    return run.taken == before.taken


def reached(run: Run, progress: Progress, before: Boundary) -> Boundary | None:
    """The newest boundary that can be saved now: the one after the step if the step is updated and logged, else the one
    before it. So is the one before a step without an update if the next step's rollouts, which only older weights could
    sample again, are not complete. None after the first update of any other such step, and of a step that is not
    logged, whose weights belong to no step.
    """
    if progress.written == before.step:
        after = before.step + 1
        if not run.config.rollout.ahead or after >= run.config.steps or progress.ahead.holds(after):
            return Boundary.of(run, progress, after)
    return before if untouched(run, before) else None


def save(run: Run, progress: Progress, at: Boundary, *, keep: int = 0) -> checkpoint.Checkpoint:
    """Write the checkpoint of a boundary that `reached` allows, and keep `keep` older ones more than configured.

    Raises as `checkpoint.save`.
    """
    write = _prepared(run, progress, at, keep)
    with ranks.together("saving"):
        progress.saved = write()
    return progress.saved


def save_or_wait(
    run: Run, progress: Progress, at: Boundary, *, stopped: Callable[[], bool], tell: Callable[[str], None]
) -> checkpoint.Checkpoint:
    """`save`, which is tried again on a full disk until there is room, `stopped()`, or `checkpoint.wait_minutes` are
    over. `tell` is called once, with what the run waits for.
    """
    until = time.monotonic() + 60 * run.config.checkpoint.wait_minutes
    noted = False
    while True:
        try:
            return save(run, progress, at)
        except (RunFolderError, RankError) as error:
            if not ranks.all_failed() or not ranks.any_rank(checkpoint.is_full(error)):
                raise
            if ranks.any_rank(stopped() or time.monotonic() >= until):
                raise
            if not noted:
                minutes = run.config.checkpoint.wait_minutes
                tell(f"{format_error(error)}; the run waits for room, up to {minutes:g} minutes")
            noted = True
            time.sleep(SECONDS_BETWEEN)


def begin_save(
    run: Run, progress: Progress, at: Boundary, done: Callable[[Callable[[], SavedCheckpoint]], None]
) -> None:
    """Start to write the checkpoint of a boundary while training continues; without `checkpoint.background`, wait for
    its end.

    The next `progress.saving.wait` calls `done` with a function, which returns the checkpoint or raises as
    `checkpoint.save`. Raises RunFolderError if the logs cannot be synced.
    """

    def finish(outcome: Future[SavedCheckpoint]) -> None:
        progress.failed_saves += 1
        if outcome.exception() is None:
            progress.saved, progress.failed_saves = outcome.result(), 0
        done(outcome.result)

    try:
        write = _prepared(run, progress, at)
    except (RunFolderError, RankError):
        progress.failed_saves += 1
        raise
    progress.saving.begin(write, finish)
    if not run.config.checkpoint.background:
        progress.saving.wait()


def _prepared(run: Run, progress: Progress, at: Boundary, keep: int = 0) -> Callable[[], checkpoint.Checkpoint]:
    """A function that writes the checkpoint of a boundary, for any thread.

    Everything but the tensors is read here, before training continues to change it.
    """
    progress.saving.wait()
    # The logs first: a checkpoint on the disk relies on the rows before it
    logs = ranks.from_writer(lambda: run.logbook.sync(at.step), doing="syncing the logs")
    pending = {"pending": at.pending.state_dict()} if at.pending else {}
    state = {**at.state, "history": at.history.state_dict(), **pending}
    more = {**(run.critic.state() if run.critic else {}), **(at.pending.tensors() if at.pending else {})}
    tensors, shares = {**run.learner.state(), **more}, run.learner.shares(more)
    known = None if progress.saved is None else progress.saved.path
    beside = run.learner.on_side_stream()

    def write() -> checkpoint.Checkpoint:
        with beside:
            written = shares.written(save_whole)
        return written or checkpoint.Checkpoint(path_of(run.folder, at.step), at.step)

    def save_whole() -> checkpoint.Checkpoint:
        return checkpoint.save(
            run.folder,
            at.step,
            write_model=lambda path: run.learner.write_model(path, run.files, shares.read),
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
            f"Step {before.step} stopped after its first update, and before the log and the next step's rollouts were "
            f"complete. Its weights were not saved. {_elsewhere(run.folder)}"
        )
    if at.step == 0:
        return "No step was finished, so there was nothing to save: start the run again."
    try:
        ranks.from_writer(lambda: run.logbook.truncate_from(at.step, but_evaluation=True), doing="cutting the logs")
        path = save(run, progress, at, keep=1).path
    except Exception as failure:  # of any type: it must not replace the error that ended the run
        return f"The weights after {at.step} steps could not be saved ({failure}). {_elsewhere(run.folder)}"
    earlier = [other for other in paths(run.folder) if other.name < path.name]
    other = f", or delete that folder to continue from {earlier[-1].name}" if earlier else ""
    return f"The weights after {at.step} steps are saved in {path}: resume the run to continue from there{other}"


def _elsewhere(folder: Path) -> str:
    saved = paths(folder)
    return f"Resume the run to continue from {saved[-1]}" if saved else "There is no earlier checkpoint"
