"""Seconds per step that trackers cost the training thread, while one of them blocks.

    python benchmarks/tracking.py
    python benchmarks/tracking.py --real 3

A run's events are passed to `track_run` as `fit` does: per step a row with as many metrics as in a run and the phases,
every tenth step a notice, every fiftieth an evaluation. "blocks" is a tracker in which every call lasts `--blocks`
seconds; "four" are four that return at once; "none" is no tracker. With `--real N`, N runs of the bundled policy with
wandb, tensorboard, mlflow and trackio (offline) alternate with N runs without trackers. The result is the ratio of the
seconds of each step with and without them.

Wall time is CPU time plus waiting. Passing an event takes no lock. It waits for the interpreter, which another thread
of the process had (counted by ru_nvcsw, calls in which this thread slept), or for the core. Work before the first step
is reported separately ("start").
"""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import frame
import numpy as np

from winnow.config_file import validate
from winnow.core.events import Ended, Evaluated, Event, Notice, PhaseBegan, Started, Watch
from winnow.records import StepReport
from winnow.trackers.interface import Tracker
from winnow.trackers.watch import track_run
from winnow.training.fit import fit
from winnow.training.resolve import resolve_members

METRICS, PHASES = 80, 8  # per step
PARTS = ("wall", "CPU", "waits for the interpreter", "waits for the core")
REAL = ("wandb", "tensorboard", "mlflow", "trackio")


def blocking(run: Any, *, seconds: float) -> Tracker:
    class Blocking(Tracker):
        def log(self, step: int, metrics: Any) -> None:
            time.sleep(seconds)

    return Blocking()


def at_once(run: Any) -> Tracker:
    return Tracker()


def events(steps: int) -> list[Event]:
    """The events of a run with this number of steps, after its start."""
    told: list[Event] = []
    for step in range(steps):
        if step % 50 == 0:
            told.append(Evaluated(step, {f"eval/{number}": float(number) for number in range(12)}))
        told += [PhaseBegan(step, "update")] * PHASES
        told.append(StepReport(step=step, metrics={f"metric/{number}": float(number) for number in range(METRICS)}))
        if step % 10 == 0:
            told.append(Notice(f"step {step}: something"))
    return told


class Timed:
    """Calls a watcher, and records the seconds by `PARTS` of each step; -1 is the start."""

    def __init__(self, watch: Watch) -> None:
        self.watch, self.step = watch, -1
        self.spent: dict[int, Any] = {}
        self.reported: list[float] = []  # the time of each step

    def __call__(self, event: Event) -> None:
        # a notice has no step: it counts for the previous one
        self.step = -1 if isinstance(event, Started) else getattr(event, "step", self.step)
        slept = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        wall, cpu = time.perf_counter(), time.thread_time()
        self.watch(event)
        cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
        slept = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw > slept
        spent = np.array([wall, cpu, slept * (wall - cpu), (not slept) * (wall - cpu)])
        self.spent[self.step] = self.spent.get(self.step, np.zeros(len(PARTS))) + spent
        if isinstance(event, StepReport):
            self.reported.append(time.perf_counter())

    def milliseconds(self) -> dict[str, Any]:
        steps = 1e3 * np.stack([spent for step, spent in self.spent.items() if step >= 0])
        start = dict(zip(PARTS, (1e3 * self.spent[-1]).tolist(), strict=True))
        return {"start": start, **{name: spread(values) for name, values in zip(PARTS, steps.T, strict=True)}}


def spread(values: Any) -> dict[str, float]:
    found = {"mean": values.mean(), "p99": np.quantile(values, 0.99), "max": values.max()}
    return {name: round(float(value), 4) for name, value in found.items()}


def of_thread(track: Any, steps: int, pause: float) -> dict[str, Any]:
    """Milliseconds per step that the training thread spends in the watcher."""
    members = resolve_members(validate({"track": track}), base=Path())
    with tempfile.TemporaryDirectory() as folder, track_run(members, notify=lambda event: None) as watch:
        timed = Timed(watch)
        timed(Started(Path(folder), 0, steps))
        for event in events(steps):
            timed(event)
            time.sleep(pause)
        watch(Ended(steps, None, interrupted=True))
    return timed.milliseconds()


def of_run(track: Any, steps: int, seed: int) -> tuple[dict[str, Any], list[float]]:
    """The same of a real run, and the seconds of its steps after the first."""
    with tempfile.TemporaryDirectory() as place:
        os.environ |= {"WANDB_MODE": "offline", "TRACKIO_DIR": place, "MLFLOW_TRACKING_URI": f"sqlite:///{place}/ml.db"}
        keys = {"output": f"{place}/run", "steps": steps, "seed": seed, "track": track, "threads": 1}
        members = resolve_members(validate({**keys, "evaluate": {"problems": 4}}), base=Path())
        with track_run(members, notify=lambda event: None) as watch:
            timed = Timed(watch)
            fit(members, watch=timed)
    return timed.milliseconds(), np.diff(timed.reported).tolist()


def of_real(rounds: int, steps: int) -> dict[str, Any]:
    """Runs with and without the real trackers, in turns."""
    sides: Mapping[str, Any] = {
        "none": lambda seed: of_run([], steps, seed),
        "real": lambda seed: of_run(list(REAL), steps, seed),
    }
    turns = frame.paired(rounds, sides, warm_up=0)
    seconds = {name: [second for turn in turns for second in turn[name][0][1]] for name in sides}
    more = [1e3 * (with_them - without) for with_them, without in zip(seconds["real"], seconds["none"], strict=True)]
    return {
        "steps": steps,
        "milliseconds of the training thread per step, by round": [turn["real"][0][0] for turn in turns],
        "median seconds of a step": {name: frame.median(values) for name, values in seconds.items()},
        "a step's seconds, with over without": frame.median_ratio(seconds["real"], seconds["none"]),
        "a step's milliseconds, with less without": statistics.median(more),
    }


def main() -> None:
    made = frame.parser(
        __doc__,
        steps=1000,
        blocks=(10, "seconds of each call"),
        wait=(1, "seconds at the end"),
        real=(0, "runs with the real trackers, and as many without"),
        real_steps=(40, "of each such run"),
    )
    options = frame.parse(made)
    blocks = {"use": blocking, "seconds": float(options.blocks), "wait_seconds": float(options.wait)}
    sides = {"none": [], "four": [at_once] * 4, "blocks": blocks}
    found = {name: of_thread(track, options.steps, 0.002) for name, track in sides.items()}
    report: dict[str, Any] = {"metrics per step": METRICS, "seconds of each call that blocks": options.blocks}
    report["milliseconds of the training thread per step"] = found
    if options.real:
        report["real trackers"] = of_real(options.real, options.real_steps)
    packages = ("winnow-rl", *(REAL if options.real else ()))
    frame.finish("tracking", report, options, packages=packages, show=tuple(report))


if __name__ == "__main__":
    main()
