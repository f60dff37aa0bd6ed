"""`winnow train` in a process that trains, alone or as one of several ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from winnow import ranks
from winnow.commands.command_line import SAVED, RunFailed, print_text
from winnow.commands.train.rank_end import HOLD_BACK_SECONDS, RankEnd
from winnow.core.events import Watch
from winnow.core.loop import Result
from winnow.core.members import Members
from winnow.errors import ConfigError, DataError, RunFolderError, WinnowError, resumable
from winnow.run_view.progress import output_for, progress
from winnow.state.folder import has_finished_step
from winnow.trackers.watch import track_run
from winnow.training.fit import fit
from winnow.training.resolve import resolve_file
from winnow.view.screen import Progress

RAISED_BY_ALL = (ConfigError, DataError, RunFolderError)  # before the first step, every rank raises the same


@dataclass(frozen=True)
class TrainingRequest:
    """The arguments of `winnow train`, the same for every rank."""

    config: Path
    sets: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    resume: bool = False
    allow_change: tuple[str, ...] = ()
    progress: Progress = "auto"

    def members(self) -> Members:
        """The members that the configuration names. Raises ConfigError."""
        with self.output():  # a user's file may print when it is imported
            return resolve_file(self.config, self.sets, self.unset)

    def output(self) -> AbstractContextManager[IO[str]]:
        """Standard output; with JSON progress, reserved for the events of the run."""
        return output_for(self.progress)


def this_rank() -> int:
    """This process's rank according to its launcher, also before the ranks are connected."""
    return int(os.environ.get("RANK", "0"))


def train_here(request: TrainingRequest, *, launched: bool = False) -> int:
    """Train in this process, and return the exit code: 0, or that of an interrupted run.

    After an error, a rank leaves a note for its launcher. If winnow `launched` it, even as the only one (on Ray), it
    returns the exit code, and the parent prints the error. Otherwise rank 0 raises the error, and another rank returns
    the exit code; it prints the error unless rank 0 raises the same one or another rank is the cause.

    Raises WinnowError subclasses.
    """
    if ranks.launched_count() == 1 and not launched:
        return _train(request)
    try:
        return _train(request)
    except Exception as error:
        end = RankEnd.of(error, this_rank())
        end.leave()
        if end.suffered:
            time.sleep(HOLD_BACK_SECONDS)  # launchers report the rank that exits first, and the cause is another one
        if launched:
            return end.code
        if this_rank() == 0:
            raise
        if not (end.suffered or (isinstance(error, RAISED_BY_ALL) and not end.begun)):
            print_text(f"rank {end.rank}: {end.trace or end.text}", err=True)
        return end.code


def _train(request: TrainingRequest) -> int:
    with request.output() as output:
        return _train_with_display(request, output)


def _train_with_display(request: TrainingRequest, output: IO[str]) -> int:
    members = request.members()
    with ranks.joined(timeout_seconds=members.config.ranks.timeout_seconds):
        with _display(request.progress, output) as (watch, begun), track_run(members, notify=watch) as tracking:
            try:
                result = fit(members, resume=request.resume, allow_change=request.allow_change, watch=(watch, tracking))
            except WinnowError as error:
                if not begun():
                    raise
                failed = RunFailed.of(error)  # with no finished step, the run is started again and not resumed
                raise (resumable(failed) if has_finished_step(members.output) else failed) from error
        code = _report_end(result, model=request.progress != "json")
        # Ranks exit together: a launcher kills the others as soon as one exits with a code other than 0.
        ranks.gather_from_all(None)
    return code


@contextmanager
def _display(how: Progress, output: IO[str]) -> Iterator[tuple[Watch, Callable[[], bool]]]:
    """The display of rank 0, and whether it has shown the beginning of a first step; other ranks display nothing."""
    if this_rank() != 0:
        yield (lambda event: None), (lambda: False)
        return
    with progress(how, file=output) as display:
        yield display, lambda: display.standing.begun


def _report_end(result: Result, *, model: bool) -> int:
    """The exit code. Prints on standard error that a run was interrupted; else, with `model`, the model's path."""
    code = SAVED if result.interrupted else 0
    if this_rank() != 0:
        return code
    if result.interrupted:
        saved = " and saved" if result.model else ""
        print_text(f"interrupted after {result.steps} steps{saved}", err=True)
    elif model:
        print_text(f"model: {result.model}")
    return code
