"""Seconds that trackers take of the thread that trains, per step, while one of them blocks: benchmarks/results.

    python benchmarks/tracking.py

A run's events are handed to `tracked` as `fit` hands them: per step a row of as many metrics as a run writes, in every
tenth a notice, in every fiftieth an evaluation. "blocks" is a tracker whose every call lasts `--blocks` seconds; "four"
are four that answer at once; "none" is no tracker at all. The first step, in which threads begin, stands by itself.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import frame
import numpy as np

from winnow.config_file import validate
from winnow.records import StepReport
from winnow.report.tracking import tracked
from winnow.trackers import Tracker
from winnow.training.events import Ended, Evaluated, Event, Notice, Started
from winnow.training.resolve import resolve_members

METRICS = 80  # in a row


def blocking(run: Any, *, seconds: float) -> Tracker:
    class Blocking(Tracker):
        def log(self, step: int, metrics: Any) -> None:
            time.sleep(seconds)

    return Blocking()


def at_once(run: Any) -> Tracker:
    return Tracker()


def events(steps: int) -> list[Event]:
    """What a run of so many steps tells its watchers after it has started."""
    told: list[Event] = []
    for step in range(steps):
        if step % 50 == 0:
            told.append(Evaluated(step, {f"eval/{number}": float(number) for number in range(12)}))
        told.append(StepReport(step=step, metrics={f"metric/{number}": float(number) for number in range(METRICS)}))
        if step % 10 == 0:
            told.append(Notice(f"step {step}: something"))
    return told


def of_thread(track: Any, steps: int, pause: float) -> dict[str, float]:
    """Milliseconds that the training thread spends in the watch, per step."""
    spent = np.zeros(steps)
    members = resolve_members(validate({"track": track}), base=Path())
    with tempfile.TemporaryDirectory() as folder, tracked(members, tell=lambda event: None) as watch:
        begin = time.perf_counter()
        watch(Started(Path(folder), 0, steps))
        spent[0] += time.perf_counter() - begin
        at = 0
        for event in events(steps):
            at = getattr(event, "step", at)  # a notice has none: it is of the step before it
            begin = time.perf_counter()
            watch(event)
            spent[at] += time.perf_counter() - begin
            time.sleep(pause)
        watch(Ended(steps, None, interrupted=True))
    first, *rest = (1e3 * spent).tolist()
    return {"first": first, "mean": float(np.mean(rest)), "p99": float(np.quantile(rest, 0.99)), "max": max(rest)}


def main() -> None:
    made = frame.parser(__doc__, steps=1000, blocks=(10, "seconds of each call"), wait=(1, "seconds at the end"))
    options = frame.parse(made)
    blocks = {"use": blocking, "seconds": float(options.blocks), "wait_seconds": float(options.wait)}
    sides = {"none": [], "four": [at_once] * 4, "blocks": blocks}
    found = {name: of_thread(track, options.steps, 0.002) for name, track in sides.items()}
    report = {"metrics per step": METRICS, "steps": options.steps, "seconds of each call that blocks": options.blocks}
    report["milliseconds of the training thread per step"] = found
    frame.finish("tracking", report, options, packages=("winnow-rl",), show=tuple(report))


if __name__ == "__main__":
    main()
