"""The regret of a choice of n and m relative to the best trained cell, for benchmarks/planner.py."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from winnow.algos.step_plan import Setting

Times = Mapping[str, Mapping[str, float]]  # label -> seed -> seconds to the level; infinity: never
TABLE = ((0.25, 8), (0.1, 16), (0.0, 32))  # (p, n) of docs/choosing-n-and-m.md: this n from this p on


def by_the_page(rate: float) -> tuple[int, int]:
    """(n, m) for a mean pass rate at the start: n of docs/choosing-n-and-m.md, and a quarter of n."""
    near = min(rate, 1 - rate)
    n = next(n for least, n in TABLE if near >= least)
    return n, n // 4


def nearest(cells: Mapping[str, Setting], n: int, m: int) -> str:
    """The label of the cell with the smallest sum of |log n| and |log m| differences; the first of equal ones."""
    return min(cells, key=lambda label: abs(math.log(cells[label].rollouts / n)) + abs(math.log(cells[label].kept / m)))


def geometric(values: Sequence[float]) -> float:
    """The geometric mean; infinity if any value is."""
    return float(np.exp(np.mean(np.log(values))))


def over_seeds(times: Times) -> dict[str, float]:
    return {label: geometric(list(of.values())) for label, of in times.items()}


def regret(times: Mapping[str, float], chosen: str) -> float:
    """The time of a cell over that of the best one; infinity if the chosen one never reached the level."""
    return times[chosen] / min(times.values())


def median_regret(times: Mapping[str, float]) -> float:
    """The regret of the median cell; for an even number the mean of the middle two."""
    return float(np.median(list(times.values()))) / min(times.values())


def regrets(times: Times, choices: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Regrets of each way to choose (name -> seed -> label), per seed, and by the mean times over seeds.

    For the mean times, a way chooses the cell that it chose for most seeds, the first of equals. Infinity becomes null.
    """
    means = over_seeds(times)
    seeds = sorted({seed for of in times.values() for seed in of})
    by_seed = {seed: {label: of[seed] for label, of in times.items()} for seed in seeds}
    found: dict[str, Any] = {}
    for name, chosen in choices.items():
        each = {seed: regret(by_seed[seed], chosen[seed]) for seed in seeds}
        labels = [chosen[seed] for seed in seeds]
        most = max(dict.fromkeys(labels), key=labels.count)
        found[name] = {
            "chosen": dict(chosen),
            "per_seed": {seed: _finite(value) for seed, value in each.items()},
            "mean_over_seeds": _finite(geometric(list(each.values()))),
            "of_mean_times": {"chosen": most, "regret": _finite(regret(means, most))},
        }
    found["median cell"] = {
        "per_seed": {seed: _finite(median_regret(of)) for seed, of in by_seed.items()},
        "mean_over_seeds": _finite(geometric([median_regret(of) for of in by_seed.values()])),
        "of_mean_times": {"regret": _finite(median_regret(means))},
    }
    return found


def _finite(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None
