"""The seconds of an allocation by its number of prompts: every value, and GVM's shares.

    python benchmarks/allocation_speed.py

Pass rates are uniform in [0, 1], and the budget is 16 rollouts per prompt. The median is over `--rounds` calls, by the
wall clock and by the CPU time of the process, which depends less on other processes. Writes
benchmarks/results/<date>_allocation_speed.json.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import frame
import numpy as np

from winnow.budget.allocation import DR_GRPO, KNAPSACK, MEAN, RLOO, allocate_greedily, apportion, gvm_weights

PROMPTS = (32, 1_024, 10_000, 100_000)
MEAN_COUNT = 16


def milliseconds(work: Callable[[], Any], rounds: int) -> dict[str, float]:
    """Median milliseconds of a call by both clocks, after one call that is not timed."""
    wall, cpu = list[float](), list[float]()
    work()
    for _ in range(rounds):
        started, used = time.perf_counter(), time.process_time()
        work()
        wall.append(1e3 * (time.perf_counter() - started))
        cpu.append(1e3 * (time.process_time() - used))
    return {"wall": round(statistics.median(wall), 2), "cpu": round(statistics.median(cpu), 2)}


def measure(prompts: int, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each allocation of `prompts` prompts."""
    rates, budget = np.random.default_rng(0).random(prompts), MEAN_COUNT * prompts
    weights = gvm_weights(rates, np.ones(prompts), alpha=1e-3, beta=2.0)
    works: dict[str, Callable[[], Any]] = {
        "knapsack": lambda: allocate_greedily(KNAPSACK, rates, budget, minimum=2),
        "vip_rloo": lambda: allocate_greedily(RLOO, rates, budget, minimum=2),
        "vip_dr_grpo": lambda: allocate_greedily(DR_GRPO, rates, budget, minimum=3),
        "cures": lambda: allocate_greedily(MEAN, rates * (1 - rates), budget, minimum=2),
        "gvm": lambda: apportion(weights, budget, minimum=2),
    }
    return {name: milliseconds(work, rounds) for name, work in works.items()}


def main() -> None:
    options = frame.parse(frame.parser(__doc__, rounds=(9, "timed calls of each")))
    report = {"milliseconds": {str(prompts): measure(prompts, options.rounds) for prompts in PROMPTS}}
    frame.finish("allocation_speed", report, options, packages=("winnow-rl", "numpy"), show=tuple(report))


if __name__ == "__main__":
    main()
