"""`winnow sweep`: read the sweep file, and train its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.commands.sweep.comparison import any_evaluated, comparison_due
from winnow.commands.sweep.display import sweep_display
from winnow.commands.sweep.loop import Sweep
from winnow.commands.sweep.plan import SweepPlan, read_plan, record
from winnow.commands.sweep.process import Command, Launcher, OnThisMachine, train_command
from winnow.commands.sweep.reused_runs import reuse
from winnow.state.sweep_folder import SweepFolder, SweepRun, read_sweep
from winnow.training.signals import stop_signals
from winnow.view.text import wrap


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
        runs = read_sweep(folder.path)
        # After the launcher, because Ray installs signal handlers too
        with stop_signals(now=False) as stop, sweep_display() as display:
            for line in plan_lines(plan, runs, reused):
                display.print_line(line)
            steps = {label: settings.config.steps for label, settings in plan.settings.items()}
            sweep = Sweep(folder, runs, steps, launcher, display, command)
            sweep.run(stop)
    ends = tuple("finished" if run.finished else sweep.ends.get(run.name, "waiting") for run in runs)
    evaluated = set(ends) == {"finished"} and any_evaluated(runs)
    return SweepResult(plan.output, ends, comparison_due(plan.output) if evaluated else None, evaluated)


def _launcher(plan: SweepPlan, folder: SweepFolder) -> Launcher:
    if plan.file.ray is None:
        return OnThisMachine(plan.file.at_once)
    from winnow.commands.sweep.on_ray import OnRay

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
