"""What `winnow train` does in the process that trains, be it alone or one of several ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from winnow import ranks
from winnow.commands.exit_codes import SAVED, RunFailed
from winnow.commands.launch.rank_end import RankEnd, hold_back
from winnow.config_file import load
from winnow.errors import ConfigError, DataError, RunFolderError, WinnowError, resumable
from winnow.report.progress import output_for, progress
from winnow.report.screen import Progress
from winnow.report.text import safe
from winnow.report.tracking import tracked
from winnow.training.events import Watch
from winnow.training.fit import Result, fit
from winnow.training.members import Members
from winnow.training.resolve import resolve_members

SHOWN_BY_ALL = (ConfigError, DataError, RunFolderError)  # that ranks raise alike, before the first step


@dataclass(frozen=True)
class TrainingRequest:
    """What a user asks of `winnow train`; every rank gets the same."""

    config: Path
    sets: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    resume: bool = False
    allow_change: tuple[str, ...] = ()
    progress: Progress = "auto"

    def members(self) -> Members:
        """What the configuration names. Raises ConfigError."""
        with self.output():  # a user's file may print as it is imported
            return resolve_members(load(self.config, self.sets, self.unset), base=self.config.parent)

    def output(self) -> AbstractContextManager[IO[str]]:
        """Standard output; for this run's events alone where they are JSON."""
        return output_for(self.progress)


def this_rank() -> int:
    """The number of this process among those that its launcher started, known before they have met."""
    return int(os.environ.get("RANK", "0"))


def train_here(asked: TrainingRequest, *, launched: bool = False) -> int:
    """Train in this process, and return the exit code: 0, or that of an interrupted run.

    One of several ranks leaves a note of an error for its launcher, and returns the code of one that another process
    tells: the writer, or where winnow `launched` the ranks itself, their parent. Raises WinnowError subclasses.
    """
    if ranks.asked_for() == 1:
        return _train(asked)
    try:
        return _train(asked)
    except Exception as error:
        end = RankEnd.of(error, this_rank())
        end.leave()
        if end.suffered:
            hold_back()
        if launched:
            return end.code
        if this_rank() == 0:
            raise
        if not (end.suffered or (isinstance(error, SHOWN_BY_ALL) and not end.begun)):
            print(safe(f"rank {end.rank}: {end.trace or end.text}"), file=sys.stderr, flush=True)
        return end.code


def _train(asked: TrainingRequest) -> int:
    with asked.output() as output:
        return _train_showing(asked, output)


def _train_showing(asked: TrainingRequest, output: IO[str]) -> int:
    members = asked.members()
    # All ranks end together: a launcher ends the others as soon as one has ended with a code that is not 0.
    with ranks.joined(timeout_seconds=members.config.ranks.timeout_seconds):
        with _shown(asked.progress, output) as (watch, begun), tracked(members, tell=watch) as tracking:
            try:
                result = fit(members, resume=asked.resume, allow_change=asked.allow_change, watch=(watch, tracking))
            except WinnowError as error:
                raise (resumable(RunFailed.of(error)) if begun() else error) from error
        code = _told(result, model=asked.progress != "json")
        ranks.each(None)
    return code


@contextmanager
def _shown(how: Progress, output: IO[str]) -> Iterator[tuple[Watch, Callable[[], bool]]]:
    """The writer's display, and whether a first step is known to have begun; another rank shows nothing."""
    if this_rank() != 0:
        yield (lambda event: None), (lambda: False)
        return
    with progress(how, file=output) as display:
        yield display, lambda: display.standing.begun


def _told(result: Result, *, model: bool) -> int:
    """The exit code. How the run ended is told on standard error where it did early, else where its `model` is."""
    code = SAVED if result.interrupted else 0
    if this_rank() != 0:
        return code
    if result.interrupted:
        saved = " and saved" if result.model else ""
        text = f"interrupted after {result.steps} steps{saved}"
        print(text, file=sys.stderr, flush=True)
    elif model:
        print(f"model: {safe(str(result.model))}", flush=True)
    return code
