"""The sweep itself: runs are begun in their order, followed, and written down when they end."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from winnow.commands.sweep.run_process import Command, Launched, Launcher, ProcessEnd, train_command
from winnow.commands.sweep.run_progress import RunProgress, TimeLeft, last_lines
from winnow.commands.sweep.sweep_display import SweepDisplay, standing
from winnow.errors import RunFolderError, told
from winnow.report.text import accuracies, duration
from winnow.state.run_folder import LOCK, Lock, begun
from winnow.state.sweep_folder import LedgerLine, Status, SweepFolder, SweepRun
from winnow.training.signals import Stop

SAVED = 75  # the exit code of `winnow train` that was interrupted
POLL_SECONDS = 0.2
SHOWN = 3  # runs under way, in the line that says where the sweep stands


@dataclass
class _Running:
    run: SweepRun
    launched: Launched
    began: float
    log_start: int  # bytes that earlier launches wrote
    alone: bool
    asked: int = 0  # how often, to end

    def ask(self) -> None:
        """Ask it to save and end; a second time, to end at once."""
        self.asked += 1
        self.launched.stop()


@dataclass
class Sweep:
    """The runs of a sweep on their way to their ends.

    `steps` are those of each label's runs; `command` gives the arguments with which Python makes a run.
    """

    folder: SweepFolder
    runs: Sequence[SweepRun]
    steps: Mapping[str, int]
    launcher: Launcher
    display: SweepDisplay
    command: Command = train_command
    clock: Callable[[], float] = time.monotonic
    ends: dict[str, Status] = field(default_factory=dict)  # of the runs that ended in this process, by name
    _running: list[_Running] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._progress = {run.name: RunProgress(run.path) for run in self.runs}
        self._left = TimeLeft(self._progress.values(), self.clock)

    def run(self, stop: Stop) -> None:
        """Take every run that is not finished to its end. When asked to stop, the runs under way save and end.

        Raises RunFolderError where the ledger cannot be written, or a lock not be used; nothing is left running then.
        """
        waiting = deque(run for run in self.runs if not run.finished)
        try:
            self._wait_for_earlier(waiting, stop)
            told = False
            while self._running or (waiting and not stop.asked):
                while waiting and not stop.asked and self._has_room():
                    self._begin(waiting.popleft())
                if stop.asked and not told:
                    told = True
                    self._ask_to_end()
                for running in list(self._running):
                    if (ended := running.launched.poll()) is not None:
                        self._end(running, ended)
                self._show()
                time.sleep(POLL_SECONDS)
        except BaseException as error:
            self._end_all(error)
            raise

    def _wait_for_earlier(self, waiting: Sequence[SweepRun], stop: Stop) -> None:
        """A sweep that was killed leaves runs that still save; beside them, none would have the machine alone."""
        for run in waiting:
            said = False
            while not stop.asked and (holder := _holder(run)) is not None:
                if not said:
                    self.display.say(f"waiting    {holder}")
                    said = True
                time.sleep(POLL_SECONDS)

    def _has_room(self) -> bool:
        return self.launcher.at_once is None or len(self._running) < self.launcher.at_once

    def _begin(self, run: SweepRun) -> None:
        written = run.log.stat().st_size if run.log.exists() else 0
        by_hand = not run.launched and begun(run.path)  # its first steps are of a launch that nobody wrote down
        alone = self.launcher.alone and not by_hand
        self.folder.note(LedgerLine(run.label, run.seed, "began", alone))
        done = self._progress[run.name].look()
        self.display.say(f"{self.launcher.begins:<11}{run.name}" + (f", after {done} steps" if done else ""))
        try:
            launched = self.launcher.start(run, self.command(run))
        except OSError as error:
            launched = NotLaunched(ProcessEnd(None, f"cannot be launched: {error}"))
        self._running.append(_Running(run, launched, self.clock(), written, alone))

    def _end(self, running: _Running, ended: ProcessEnd) -> None:
        run, status = running.run, _status(ended, running.asked)
        self._running.remove(running)
        self.folder.note(LedgerLine(run.label, run.seed, status, running.alone, ended.code))
        self.ends[run.name] = status
        progress = self._progress[run.name]
        done, took = progress.look(), duration(self.clock() - running.began)
        match status:
            case "finished":
                held_out = f", held-out {accuracies(progress.evaluation)}" if progress.evaluation else ""
                self.display.say(f"finished   {run.name} in {took}{held_out}")
            case "stopped":
                saved = f"after {done} steps, and saved" if ended.code == SAVED else "while it was starting"
                self.display.say(f"stopped    {run.name} {'before it began' if ended.cancelled else saved}")
            case _:
                where = "" if ended.problem else f"; {run.log} ends with"
                self.display.say(f"failed     {run.name}: {ended.problem or _said(ended.code)}{where}")
                for line in [] if ended.problem else last_lines(run.log, running.log_start):
                    self.display.say(f"           | {line}")

    def _show(self) -> None:
        finished = {run.name for run in self.runs if run.finished}
        over = finished | self.ends.keys()
        done = {name: progress.done for name, progress in self._progress.items()}
        for running in self._running:
            done[running.run.name] = self._progress[running.run.name].look()
        steps = {run.name: self.steps[run.label] for run in self.runs}
        left = sum(max(0, steps[name] - done[name]) for name in steps if name not in over)
        names = [running.run.name for running in self._running]
        under_way = [f"{name} {done[name]}/{steps[name]}" for name in names[:SHOWN]]
        under_way += [f"and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
        seconds = self._left.seconds(left, sum(done.values()))
        self.display.stand(standing(len(over), len(self.runs), under_way, seconds))

    def _ask_to_end(self) -> None:
        names = ", ".join(running.run.name for running in self._running)
        if names:
            self.display.say(f"stopping   {names}: saving (once more ends at once, and loses what is not saved)")
        for running in self._running:
            running.ask()

    def _end_all(self, error: BaseException) -> None:
        """After an error or a second signal: ask what still runs to end, see all of it end, and only then write it
        down, which may fail again. Only a second signal is passed on to what was asked before: it loses steps.
        """
        for running in self._running:
            if not running.asked or isinstance(error, KeyboardInterrupt):
                running.ask()
        over = []
        for running in self._running:
            while (ended := running.launched.poll()) is None:
                time.sleep(POLL_SECONDS)
            over.append((running, ended))
        for running, ended in over:
            try:
                self._end(running, ended)
            except Exception as later:
                if str(later) not in told(error):
                    error.add_note(str(later))


@dataclass(frozen=True)
class NotLaunched:
    """A run that could not be launched."""

    ended: ProcessEnd

    def poll(self) -> ProcessEnd | None:
        return self.ended

    def stop(self) -> None:
        """There is nothing to stop."""


def _status(ended: ProcessEnd, asked: int) -> Status:
    """A run that is still starting dies of the signal that asks it to end: it has nothing new to save."""
    if ended.code == 0:
        return "finished"
    starting = asked == 1 and ended.code == -signal.SIGTERM
    return "stopped" if ended.code == SAVED or ended.cancelled or starting else "failed"


def _said(code: int | None) -> str:
    if code is None:
        return "its end was not seen"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def _holder(run: SweepRun) -> str | None:
    """Who writes in a run's folder now, in words; None for nobody. Raises RunFolderError for a lock that is none."""
    if not (run.path / LOCK).exists():
        return None
    try:
        Lock.take(run.path / LOCK).release()
    except RunFolderError as error:
        return str(error)
    except OSError as error:
        raise RunFolderError(
            f"cannot use {run.path / LOCK}: {error.strerror}", remedy="move it away", code="run_folder.unreadable"
        ) from error
    return None
