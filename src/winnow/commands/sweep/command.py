"""`winnow sweep`: from the sweep file to runs that are finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.commands.sweep.comparison_place import any_evaluated, comparison_due
from winnow.commands.sweep.reused_runs import reuse
from winnow.commands.sweep.run_process import Command, Launcher, OnThisMachine, train_command
from winnow.commands.sweep.run_sweep import Sweep
from winnow.commands.sweep.sweep_display import sweep_display
from winnow.commands.sweep.sweep_plan import SweepPlan, read_plan, record
from winnow.report.text import wrapped
from winnow.state.sweep_folder import SweepFolder, SweepRun, read_sweep
from winnow.training.signals import stop_signals


@dataclass(frozen=True)
class Swept:
    """What a call of a sweep came to."""

    folder: Path
    ends: tuple[str, ...]  # of each run: "finished", "failed", "stopped", or "waiting" where it was not begun
    comparison: Path | None  # a folder for the comparison, which is not there yet; None where none is due
    evaluated: bool  # whether any run has an evaluation, so that there is something to compare


def swept(path: Path, changes: Mapping[str, Any], *, resume: bool = False, command: Command = train_command) -> Swept:
    """Run the sweep of a file, or with `resume` what is left of it.

    `changes` are keys of the file said otherwise; `command` gives the arguments with which Python makes a run. Raises
    ConfigError, RunFolderError and DataError before a run is launched.
    """
    plan = read_plan(path, changes)
    with SweepFolder.open(plan.output, resume=resume) as folder, _launcher(plan, folder) as launcher:
        record(plan, folder)
        reused = reuse(plan, folder)
        runs = read_sweep(folder.path)
        # After the launcher: Ray sets handlers of signals of its own
        with stop_signals(now=False) as stop, sweep_display() as display:
            for line in _headline(plan, runs, reused):
                display.say(line)
            steps = {label: settings.config.steps for label, settings in plan.settings.items()}
            sweep = Sweep(folder, runs, steps, launcher, display, command)
            sweep.run(stop)
    ends = tuple("finished" if run.finished else sweep.ends.get(run.name, "waiting") for run in runs)
    evaluated = set(ends) == {"finished"} and any_evaluated(runs)
    return Swept(plan.output, ends, comparison_due(plan.output) if evaluated else None, evaluated)


def _launcher(plan: SweepPlan, folder: SweepFolder) -> Launcher:
    if plan.file.ray is None:
        return OnThisMachine(plan.file.at_once)
    from winnow.commands.sweep.ray_tasks import OnRay

    return OnRay(plan.file.ray, folder.path, cpus=plan.file.cpus_per_run, gpus=plan.file.gpus_per_run)


def _headline(plan: SweepPlan, runs: Sequence[SweepRun], reused: Sequence[str]) -> list[str]:
    """What will be run, and where."""
    seeds, finished = ", ".join(map(str, plan.file.seeds)), sum(run.finished for run in runs)
    so_far = f", {finished} of them finished" if finished else ""
    keys = [settings.shown for settings in plan.settings.values()]
    shared = {key: value for key, value in keys[0].items() if all(value == other.get(key) for other in keys)}
    said = [
        f"sweep      {len(runs)} runs{so_far}: {len(keys)} configurations, seeds {seeds}; written to {plan.output}",
        *([f"           every run: {_keys(shared)}"] if shared else []),
    ]
    for label, settings in plan.settings.items():
        own = {key: value for key, value in settings.shown.items() if key not in shared}
        said.append(f"           {label}: {_keys(own)}")
    if reused:
        said.append(wrapped(f"reused     {len(reused)} finished runs of other sweeps: {', '.join(reused)}"))
    if plan.file.ray is None and plan.file.at_once > 1:
        said.append(wrapped("note: runs side by side share this machine, so their seconds are not compared"))
        if any(settings.config.threads == 0 for settings in plan.settings.values()):
            said.append(wrapped("note: each of them uses every core of it; the key threads gives a run fewer"))
    return said


def _keys(keys: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value!r}" for key, value in keys.items()) or "nothing else"
