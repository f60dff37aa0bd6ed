"""Train the runs of a sweep file: start them in order, follow them, and record their ends in the ledger."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from winnow.core.stop_signals import Stop, stop_signals
from winnow.errors import RunFolderError, format_error
from winnow.state.folder import LOCK, Lock, has_finished_step
from winnow.view.text import MARGIN, format_accuracies, format_duration, wrap
from winnow_lab.sweep.display import RunProgress, SweepDisplay, last_lines, sweep_display
from winnow_lab.sweep.plan import SweepPlan, in_order, read_plan, record, reuse
from winnow_lab.sweep.process import (
    Command,
    Launched,
    Launcher,
    OnThisMachine,
    ProcessEnd,
    any_evaluated,
    comparison_due,
    train_command,
)
from winnow_lab.sweep_folder import LedgerLine, Status, SweepFolder, SweepRun, read_sweep

SAVED = 75  # the exit code of `winnow train` that was interrupted
POLL_SECONDS = 0.2
SHOWN = 3  # maximum number of runs in the status line


@dataclass
class _Running:
    run: SweepRun
    launched: Launched
    began: float
    log_start: int  # bytes that earlier launches wrote
    alone: bool
    stop_requests: int = 0

    def request_stop(self) -> None:
        """Make it save and exit; the second request makes it exit at once."""
        self.stop_requests += 1
        self.launched.stop()


@dataclass
class Sweep:
    """Trains the runs of a sweep.

    `steps` is the number of steps of each label's runs, and `max_hours` the hours of training after which one ends
    earlier (0: no limit); `command` returns the arguments with which Python starts one.
    """

    folder: SweepFolder
    runs: Sequence[SweepRun]
    steps: Mapping[str, int]
    launcher: Launcher
    display: SweepDisplay
    command: Command = train_command
    clock: Callable[[], float] = time.monotonic
    max_hours: Mapping[str, float] = field(default_factory=dict)
    ends: dict[str, Status] = field(default_factory=dict)  # run -> how it ended, of the runs that this process started
    _running: list[_Running] = field(default_factory=list)
    _explained: bool = False  # whether a line has explained ±

    def __post_init__(self) -> None:
        self._progress = {run.name: RunProgress(run.path) for run in self.runs}
        for progress in self._progress.values():
            progress.update()
        self._began, self._before = self.clock(), sum(map(self._done, self.runs))

    def run(self, stop: Stop) -> None:
        """Train every run that is not finished. On a signal, the runs in progress save and exit.

        Raises RunFolderError if the ledger cannot be written or a lock cannot be used; all runs have exited then.
        """
        waiting = deque(run for run in self.runs if not run.finished)
        try:
            self._wait_for_earlier(waiting, stop)
            stopping = False
            while self._running or (waiting and not stop.requested):
                while waiting and not stop.requested and self._has_room():
                    self._begin(waiting.popleft())
                if stop.requested and not stopping:
                    stopping = True
                    self._stop_running()
                for running in list(self._running):
                    if (ended := running.launched.poll()) is not None:
                        self._end(running, ended)
                self.display.show_status(self._status(self._running))
                time.sleep(POLL_SECONDS)
        except BaseException as error:
            self._stop_after(error)
            raise

    def _wait_for_earlier(self, waiting: Sequence[SweepRun], stop: Stop) -> None:
        """Wait for runs of a killed sweep that are still saving: they would slow down a run beside them."""
        for run in waiting:
            printed = False
            while not stop.requested and (holder := _lock_holder(run)) is not None:
                if not printed:
                    self.display.print_line(f"waiting    {holder}")
                    printed = True
                time.sleep(POLL_SECONDS)

    def _has_room(self) -> bool:
        return self.launcher.at_once is None or len(self._running) < self.launcher.at_once

    def _begin(self, run: SweepRun) -> None:
        written = run.log.stat().st_size if run.log.exists() else 0
        # Of steps that another launch made outside the sweep it is unknown whether they had the machine to themselves
        outside = not run.launched and has_finished_step(run.path)
        alone = self.launcher.alone and not outside
        self.folder.note(LedgerLine(run.label, run.seed, "began", alone))
        done = self._progress[run.name].update()
        self.display.print_line(f"{self.launcher.verb:<11}{run.name}" + (f", after {done} steps" if done else ""))
        try:
            launched = self.launcher.start(run, self.command(run))
        except OSError as error:
            launched = NotLaunched(ProcessEnd(None, f"cannot be launched: {error}"))
        self._running.append(_Running(run, launched, self.clock(), written, alone))

    def _end(self, running: _Running, ended: ProcessEnd) -> None:
        run, status = running.run, _status(ended, running.stop_requests)
        self._running.remove(running)
        self.folder.note(LedgerLine(run.label, run.seed, status, running.alone, ended.code))
        self.ends[run.name] = status
        progress = self._progress[run.name]
        done, seconds = progress.update(), format_duration(self.clock() - running.began)
        match status:
            case "finished":
                held_out = f", held-out {self._accuracies(progress.evaluation)}" if progress.evaluation else ""
                self.display.print_line(f"finished   {run.name} in {seconds}{held_out}; {self._status([])}")
            case "stopped":
                saved = f"after {done} steps, and saved" if ended.code == SAVED else "while it was starting"
                self.display.print_line(f"stopped    {run.name} {'before it began' if ended.cancelled else saved}")
            case _:
                where = "" if ended.problem else f"; {run.log} ends with"
                self.display.print_line(f"failed     {run.name}: {ended.problem or _describe_code(ended.code)}{where}")
                for line in [] if ended.problem else last_lines(run.log, running.log_start):
                    self.display.print_line(f"           | {line}")

    def _accuracies(self, evaluation: Mapping[str, float]) -> str:
        """An evaluation in one line; the first margin of the sweep is explained."""
        shown = format_accuracies(evaluation)
        explains, self._explained = "±" in shown and not self._explained, self._explained or "±" in shown
        return f"{shown} ({MARGIN})" if explains else shown

    def _status(self, running: Sequence[_Running]) -> str:
        """ "2/6 runs  grpo/seed-2 14/40  about 3:20 left": the runs that are over, the progress of those running, and
        the time that is left at the pace of this process, if a step was done and any is left. All steps count alike.
        """
        over = sum(self._is_over(run) for run in self.runs)
        for each in self._running:
            self._progress[each.run.name].update()
        now = [each.run for each in running]
        shown = [f"{run.name} {self._progress[run.name].done}/{self.steps[run.label]}" for run in now[:SHOWN]]
        shown += [f"and {len(now) - SHOWN} more"] if len(now) > SHOWN else []
        done = sum(map(self._done, self.runs))
        left = sum(self.steps[run.label] - self._done(run) for run in self.runs if not self._is_over(run))
        if left > 0 and done > self._before:
            seconds = left * (self.clock() - self._began) / (done - self._before)
            shown.append(f"about {format_duration(seconds)} left")
        return "  ".join([f"{over}/{len(self.runs)} runs", *shown])

    def _is_over(self, run: SweepRun) -> bool:
        return run.finished or run.name in self.ends

    def _done(self, run: SweepRun) -> float:
        """Of the steps of a run, those that are done. One that ends by its hours has them all at its last hour, and one
        that failed has only those that it took.
        """
        steps, hours = self.steps[run.label], self.max_hours.get(run.label, 0.0)
        if run.finished or self.ends.get(run.name) == "finished":
            return steps
        progress = self._progress[run.name]
        return max(progress.done, steps * min(progress.hours / hours, 1.0) if hours else 0.0)

    def _stop_running(self) -> None:
        names = ", ".join(running.run.name for running in self._running)
        if names:
            self.display.print_line(
                f"stopping   {names}: saving (a second signal exits at once, and loses unsaved steps)"
            )
        for running in self._running:
            running.request_stop()

    def _stop_after(self, error: BaseException) -> None:
        """After an error or a second signal: stop all runs, wait for their exit, and then record it.

        Recording comes last because it may fail, as the ledger's disk may be full. A run that is already saving gets
        a second request only for a second signal, because that loses steps.
        """
        for running in self._running:
            if not running.stop_requests or isinstance(error, KeyboardInterrupt):
                running.request_stop()
        over = []
        for running in self._running:
            while (ended := running.launched.poll()) is None:
                time.sleep(POLL_SECONDS)
            over.append((running, ended))
        for running, ended in over:
            try:
                self._end(running, ended)
            except Exception as later:
                if str(later) not in format_error(error):
                    error.add_note(str(later))


@dataclass(frozen=True)
class NotLaunched:
    """A run that could not be launched."""

    ended: ProcessEnd

    def poll(self) -> ProcessEnd | None:
        return self.ended

    def stop(self) -> None:
        """Does nothing: no process exists."""


def _status(ended: ProcessEnd, stop_requests: int) -> Status:
    """How a run ended. A starting run has no signal handler: SIGTERM ends it, and it counts as stopped."""
    if ended.code == 0:
        return "finished"
    starting = stop_requests == 1 and ended.code == -signal.SIGTERM
    return "stopped" if ended.code == SAVED or ended.cancelled or starting else "failed"


def _describe_code(code: int | None) -> str:
    if code is None:
        return "its exit code is unknown"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def _lock_holder(run: SweepRun) -> str | None:
    """A message about the process that holds a run's lock; None if none does. Raises RunFolderError for a bad lock."""
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


@dataclass(frozen=True)
class SweepResult:
    """The result of a call of `winnow sweep`."""

    folder: Path
    ends: tuple[str, ...]  # per run: "finished", "failed", "stopped", or "waiting" if it was not started
    comparison: Path | None  # a new folder for the comparison; None if no comparison is due
    evaluated: bool  # whether any run has an evaluation, so that there is something to compare


def train_sweep(
    path: Path, changes: Mapping[str, Any], *, resume: bool = False, command: Command = train_command
) -> SweepResult:
    """Train the runs of a sweep file, or with `resume` those that are not finished.

    `changes` replace keys of the file; `command` returns the arguments with which Python starts a run. Raises
    ConfigError, RunFolderError and DataError before a run is started.
    """
    plan = read_plan(path, changes)
    with SweepFolder.open(plan.output, resume=resume) as folder, _launcher(plan, folder) as launcher:
        record(plan, folder)
        reused = reuse(plan, folder)
        runs = in_order(plan, read_sweep(folder.path))
        # After the launcher, because Ray installs signal handlers too
        with stop_signals(now=False) as stop, sweep_display() as display:
            for line in plan_lines(plan, runs, reused):
                display.print_line(line)
            steps = {label: settings.config.steps for label, settings in plan.settings.items()}
            hours = {label: settings.config.max_hours for label, settings in plan.settings.items()}
            sweep = Sweep(folder, runs, steps, launcher, display, command, max_hours=hours)
            sweep.run(stop)
    ends = tuple("finished" if run.finished else sweep.ends.get(run.name, "waiting") for run in runs)
    evaluated = set(ends) == {"finished"} and any_evaluated(runs)
    return SweepResult(plan.output, ends, comparison_due(plan.output) if evaluated else None, evaluated)


def _launcher(plan: SweepPlan, folder: SweepFolder) -> Launcher:
    if plan.file.ray is None:
        return OnThisMachine(plan.file.at_once)
    from winnow_lab.sweep.on_ray import OnRay

    return OnRay(plan.file.ray, folder.path, cpus=plan.file.cpus_per_run, gpus=plan.file.gpus_per_run)


def plan_lines(plan: SweepPlan, runs: Sequence[SweepRun], reused: Sequence[str]) -> list[str]:
    """Lines that describe the plan: the runs, the keys that they share, and those of each label."""
    seeds, finished = ", ".join(map(str, plan.file.seeds)), sum(run.finished for run in runs)
    so_far = f", {finished} of them finished" if finished else ""
    keys = [settings.shown for settings in plan.settings.values()]
    shared = {key: value for key, value in keys[0].items() if all(value == other.get(key) for other in keys)}
    lines = [
        f"sweep      {len(runs)} runs{so_far}: {len(keys)} configurations, seeds {seeds}; written to {plan.output}",
        *([f"           every run: {_keys(shared)}"] if shared else []),
    ]
    for label, settings in plan.settings.items():
        differing = {key: value for key, value in settings.shown.items() if key not in shared}
        lines.append(f"           {label}: {_keys(differing)}")
    if reused:
        lines.append(wrap(f"reused     {len(reused)} finished runs of other sweeps: {', '.join(reused)}"))
    if plan.file.ray is None and plan.file.at_once > 1:
        lines.append(wrap("note: concurrent runs share this machine, so their seconds are not compared"))
        if any(settings.config.threads == 0 for settings in plan.settings.values()):
            lines.append(wrap("note: each of them uses every core; set the key threads to use fewer"))
    return lines


def _keys(keys: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value!r}" for key, value in keys.items()) or "nothing else"
