"""The share of a training step that is neither sampling, nor verification, nor the model's own work.

    python benchmarks/step_overhead.py                     the recipe arithmetic, 20 steps
    python benchmarks/step_overhead.py --select all --write

Run it alone. A step is timed from outside, so that its log counts. Work is sampling, the wait for verdicts after it,
the log-probs before the update, forward, backward, the optimizer, and the copy of the weights for the engine. The rest
is overhead: history, selection, advantages, weights, micro-batches, losses, tallies, metrics and the log. The first
three steps are the warm-up. --write writes benchmarks/results/<date>_step_overhead.json.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import frame

import winnow
from winnow.core.run import Progress, Run
from winnow.records import StepReport
from winnow.training import fit

WORK = {
    "generate": ("engine", "generate"),
    "verify": ("verifiers", "collect"),
    "logprobs": ("learner", "compute_logprobs"),
    "forward": ("learner", "forward"),
    "backward": ("learner", "backward"),
    "optimizer": ("learner", "step"),
    "sync": ("engine", "load"),
}
PARTS = {"log": ("logbook", "write"), "history": ("history", "observe")}  # named parts of the overhead
WARM_UP = 3
Seconds = dict[str, float]


def main() -> None:
    made = frame.parser(__doc__, steps=20, threads=2)
    made.add_argument("--recipe", default="arithmetic")
    made.add_argument("--select", help="a selector in place of the recipe's")
    made.add_argument("--write", action="store_true", help="write the result")
    options = frame.parse(made)
    steps = measured(options.recipe, options.select, options.steps, options.threads)
    shares = [step["overhead"] / step["step"] for step in steps]
    report = {
        "median seconds": {name: frame.median([step[name] for step in steps]) for name in steps[0]},
        "share of overhead": {"median": frame.median(shares), "least": min(shares), "most": max(shares)},
    }
    print(report)
    if options.write:
        frame.finish("step_overhead", report, options)


def measured(recipe: str, select: str | None, steps: int, threads: int) -> list[Seconds]:
    """Seconds of each part of each step after the warm-up."""
    timers = Timers()
    train_step = fit.train_step

    def timed_step(run: Run, progress: Progress, step: int) -> StepReport:
        if not step:
            timers.watch(run, progress)
        timers.seconds.clear()
        start = time.perf_counter()
        report = train_step(run, progress, step)
        seconds = {"step": time.perf_counter() - start, **timers.seconds}
        taken.append({**seconds, "overhead": seconds["step"] - sum(seconds.get(name, 0.0) for name in WORK)})
        return report

    taken = list[Seconds]()
    fit.train_step = timed_step
    try:
        with tempfile.TemporaryDirectory(prefix="winnow-overhead-") as folder:
            keys: dict[str, Any] = {"steps": WARM_UP + steps, "threads": threads, "output": f"{folder}/run"}
            if select:
                keys["select"] = select
            winnow.train(recipe, progress=False, evaluate={"every": 0, "problems": 8}, **keys)
    finally:
        fit.train_step = train_step
    return taken[WARM_UP:]


class Timers:
    """Seconds spent in the methods of a run since the last step began."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def watch(self, run: Run, progress: Progress) -> None:
        for name, (owner, method) in (WORK | PARTS).items():
            of = getattr(run, owner, None) or getattr(progress, owner)
            setattr(of, method, self._timed(getattr(of, method), name))

    def _timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds[name] += time.perf_counter() - start

        return timed


if __name__ == "__main__":
    main()
