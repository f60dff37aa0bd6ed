"""What a run is between two steps, and how it is saved: on time, when a signal comes, and when an error ends it.

One that is due is written beside the next step (saving.py); one after which the run ends is waited for.

The tensors of a checkpoint (parameters, moments, reference) change in an optimizer update and nowhere else, so until
the first update of a step they are those of the boundary before it. The rest, which a step changes earlier, is small:
it is remembered at each boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from winnow import ranks
from winnow.state import checkpoint
from winnow.state.checkpoint_names import path_of, paths
from winnow.state.prompt_history import History
from winnow.training.build import Run


@dataclass(frozen=True)
class Boundary:
    """A run after `step` steps, apart from its tensors."""

    step: int
    taken: int  # updates of this process, by which it is known whether the tensors are still those of the boundary
    learner: Mapping[str, Any]
    critic: Mapping[str, Any]  # of a value model of its own; else empty
    history: History
    verifiers: Mapping[str, Any]
    clock: Mapping[str, Any]

    @classmethod
    def of(cls, run: Run, step: int) -> Self:
        return cls(
            step=step,
            taken=run.taken,
            learner=run.learner.counts(),
            critic=run.critic.counts() if run.critic else {},
            history=run.history.snapshot(),
            verifiers=run.verifiers.state_dict(),
            clock=run.clock.state_dict(),
        )


def untouched(run: Run, before: Boundary) -> bool:
    """Whether parameters and moments are still those of the boundary.

    What a probe resets (`probe.outer_reset`) does not count: a resume resets it again, to the same.
    """
    return run.taken == before.taken


def reached(run: Run, before: Boundary) -> Boundary | None:
    """The last boundary that can be saved now: that after the step, where it was learned and logged; else that before
    it; None between two updates of a step.
    """
    if run.written == before.step:
        return Boundary.of(run, before.step + 1)
    return before if untouched(run, before) else None


def save(run: Run, at: Boundary, *, keep: int = 0) -> checkpoint.Checkpoint:
    """Write the checkpoint of a boundary that `reached` allows, and keep `keep` older ones more than configured.

    Raises as `checkpoint.save`.
    """
    write = _prepared(run, at, keep)
    with ranks.together("saving"):
        run.saved = write()
    return run.saved


def begin_save(run: Run, at: Boundary, done: Callable[[Callable[[], checkpoint.Checkpoint]], None]) -> None:
    """Begin to write the checkpoint of a boundary beside training. `done` is called when `run.saving.wait` finds that
    it has ended, with what returns the checkpoint or raises as `checkpoint.save`.

    Raises RunFolderError where the logs cannot be synced.
    """

    def tell(outcome: Future[checkpoint.Checkpoint]) -> None:
        if outcome.exception() is None:
            run.saved = outcome.result()
        done(outcome.result)

    run.saving.begin(_prepared(run, at), tell)
    if not run.config.checkpoint.background:
        run.saving.wait()


def _prepared(run: Run, at: Boundary, keep: int = 0) -> Callable[[], checkpoint.Checkpoint]:
    """The save of a boundary, for any thread. All that training goes on to change, tensors apart, is read here."""
    run.saving.wait()
    # Before a checkpoint that presumes their rows
    logs = ranks.from_writer(lambda: run.logbook.sync(at.step), doing="syncing the logs")
    clock = {"clock": at.clock} if at.clock else {}
    critic = {"critic": at.critic} if at.critic else {}
    state = {"optimizer": at.learner, **critic, "history": at.history.state_dict(), "verifiers": at.verifiers, **clock}
    values = run.critic.state() if run.critic else {}
    tensors, shares = {**run.learner.state(), **values}, run.learner.shares(values)
    known, beside = run.saved, run.learner.beside()

    def write() -> checkpoint.Checkpoint:
        with beside:
            written = shares.written(checkpoint_of_all)
        return written or checkpoint.Checkpoint(path_of(run.folder, at.step), at.step)

    def checkpoint_of_all() -> checkpoint.Checkpoint:
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
def rescued(run: Run, before: Boundary) -> Iterator[None]:
    """An error that leaves this block goes on as it is, with a note of what was saved before it did."""
    try:
        yield
    except Exception as error:
        error.add_note(_rescue(run, before))
        raise


def _rescue(run: Run, before: Boundary) -> str:
    """Save what is intact, and say so. An older checkpoint is never given up for it: its weights may be the cause."""
    if not ranks.all_failed():
        return f"Other ranks were still at work, so nothing was saved. {_elsewhere(run)}"
    at = reached(run, before)
    if at is None:
        return (
            f"Step {before.step} broke off after its first update and before it was logged: its weights are those of "
            f"no step and were not saved. {_elsewhere(run)}"
        )
    if at.step == 0:
        return "No step was finished, so there was nothing to save: start the run again."
    try:
        ranks.from_writer(lambda: run.logbook.truncate_from(at.step, but_evaluation=True), doing="cutting the logs")
        path = save(run, at, keep=1).path
    except Exception as failure:  # whatever it is, it must not take the place of the error that ends the run
        return f"The weights after {at.step} steps could not be saved ({failure}). {_elsewhere(run)}"
    return (
        f"The weights after {at.step} steps are saved in {path}: resume the run to go on from there, or delete that "
        f"folder to go on from the one before"
    )


def _elsewhere(run: Run) -> str:
    saved = paths(run.folder)
    return f"Resume the run to go on from {saved[-1]}" if saved else "There is no earlier checkpoint"
