"""What the corridor itself costs: the share of a step that is neither sampling, nor waiting for verdicts, nor learning.

    python benchmarks/corridor.py [--config configs/arithmetic.toml] [--steps 20]

Counted as work: engine.generate, the wait for verdicts after it, policy.forward, policy.backward and optimizer.step.
annotate (old and reference log-probs) is a forward pass of its own and reported by its name. Everything else is
overhead: prompts, history, selection, advantages, weights, micro-batches, the loss, the tally, metrics, the log files.
Writes benchmarks/results/<date>_corridor.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dated
import torch

from winnow.config import load
from winnow.training.build import Run, build
from winnow.training.probe import plan
from winnow.training.resolve import resolve_members
from winnow.training.step import train_step

WORK = {
    "generate": ("engine", "generate"),
    "verdicts": ("verifiers", "collect"),
    "forward": ("policy", "forward"),
    "backward": ("policy", "backward"),
    "optimizer": ("optimizer", "step"),
}
NAMED = {"annotate": ("policy", "annotate")}
WARM_UP = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path(__file__).parents[1] / "configs" / "arithmetic.toml")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="A.B=C")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    steps = _measure(options)
    shares = [step["overhead"] / step["step"] for step in steps]
    report = {
        "settings": {**vars(options), "config": options.config.name},
        "seconds": {name: round(statistics.median(step[name] for step in steps), 5) for name in steps[0]},
        "overhead_share": {"median": statistics.median(shares), "lowest": min(shares), "highest": max(shares)},
        "every_step": steps,
    }
    print(json.dumps({k: report[k] for k in ("seconds", "overhead_share")}, indent=1))
    print(f"written: {dated.write('corridor', report, packages=('winnow-rl', 'torch', 'transformers'))}")


def _measure(options: argparse.Namespace) -> list[dict[str, float]]:
    members = resolve_members(load(options.config, options.sets), base=options.config.parent)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        run = build(members, folder=Path(folder), device=torch.device("cpu"))
        spent = _watch(run)
        try:
            for step in range(WARM_UP + options.steps):
                spent.clear()
                start = time.perf_counter()
                plan(run, step)
                train_step(run, step)
                found.append(_divided(time.perf_counter() - start, spent))
        finally:
            run.close()
    return found[WARM_UP:]


def _divided(seconds: float, spent: dict[str, float]) -> dict[str, float]:
    parts = {name: spent.get(name, 0.0) for name in (*WORK, *NAMED)}
    return {"step": seconds, **parts, "overhead": seconds - sum(parts.values())}


def _watch(run: Run) -> dict[str, float]:
    """Seconds spent in each part since it was last cleared."""
    spent: defaultdict[str, float] = defaultdict(float)
    for name, (part, method) in (WORK | NAMED).items():
        owner = getattr(run, part)
        setattr(owner, method, _timed(getattr(owner, method), spent, name))
    return spent


def _timed(function: Callable[..., Any], spent: dict[str, float], name: str) -> Callable[..., Any]:
    def timed(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            spent[name] += time.perf_counter() - start

    return timed


if __name__ == "__main__":
    main()
