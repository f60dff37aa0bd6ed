"""What does `winnow compare` print for two groups of seeds of one configuration, whose true speed-up is 1?

    python benchmarks/equal_groups.py

Curves are simulated, and compared by winnow's own functions. A seed's accuracy goes from 36% to 83% as 1 - exp(-t / T),
t being the share of the run that is done, with a T of its own (scatter 5%), its seconds per step are its own (scatter
2%), and each evaluation has an error of its own (standard deviation of `--noise-in-thousandths`). A "level" baseline
has T = 1/9 and is within 0.2 points of its limit after two thirds of the run; a "rising" one has T = 2/3. Of each
setting are counted: ranges "without one seed" that do not contain 1.00 as printed, the speed-ups printed there, levels
first reached at a last evaluation, and baselines that the caution calls rising. Writes
benchmarks/results/<date>_equal_groups.json.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import frame
import numpy as np

from winnow.report.comparison.curve import Curve
from winnow.report.comparison.mean_curve import mean_curve
from winnow.report.comparison.speed_up import is_rising, speed_up, without_one_seed
from winnow.seeds import generator

FIRST, LAST = 0.36, 0.83  # accuracy, of the bundled policy in configs/sweeps/pods.toml
BASELINES = {"level": 1 / 9, "rising": 2 / 3}
SEEDS = (2, 3, 5)
EVALUATIONS = (4, 10, 20)
SCATTER = {"T": 0.05, "seconds": 0.02}


def main() -> None:
    options = frame.parse(
        frame.parser(__doc__, trials=(500, "comparisons of each setting"), noise_in_thousandths=5, seed=0)
    )
    begin = time.perf_counter()
    settings = {
        f"{baseline}, {seeds} seeds, {evaluations} evaluations": counted(baseline, seeds, evaluations, options)
        for baseline in BASELINES
        for seeds in SEEDS
        for evaluations in EVALUATIONS
    }
    report = {"equal groups": settings, "seconds": round(time.perf_counter() - begin, 1)}
    frame.finish("equal_groups", report, options, packages=("winnow-rl", "numpy"), show=tuple(report))


def counted(baseline: str, seeds: int, evaluations: int, options: argparse.Namespace) -> dict[str, Any]:
    """Shares of the comparisons of one setting, by axis, and the median speed-up where the range is without 1.00."""
    rng = generator(options.seed, "equal groups", baseline, seeds, evaluations)
    found: dict[str, list[tuple[bool, float, bool]]] = {"steps": [], "seconds": []}
    rising = 0
    for _ in range(options.trials):
        groups = [
            [simulated(rng, baseline, evaluations, options.noise_in_thousandths / 1000) for _ in range(seeds)]
            for _ in range(2)
        ]
        for axis, seen in found.items():
            whole, left = speed_up(*groups, axis), without_one_seed(*groups, axis)
            if whole is None or left is None or whole.ratio is None or left.lowest is None or left.highest is None:
                seen.append((False, 1.0, False))
            else:
                without = round(left.lowest, 2) > 1 or round(left.highest, 2) < 1
                seen.append((without, whole.ratio, whole.baseline_at_its_end or whole.other_at_its_end))
        curve = mean_curve(groups[0], "steps", "accuracy")
        rising += curve is not None and is_rising(curve)
    return {"baseline called rising": rising / options.trials} | {axis: shares(seen) for axis, seen in found.items()}


def shares(seen: list[tuple[bool, float, bool]]) -> dict[str, float]:
    ratios = [max(ratio, 1 / ratio) for without, ratio, _ in seen if without]
    return {
        "range without 1.00": sum(without for without, _, _ in seen) / len(seen),
        "median speed-up there": round(float(np.median(ratios)), 3) if ratios else 1.0,
        "first reached at a last evaluation": sum(late for _, _, late in seen) / len(seen),
    }


def simulated(rng: np.random.Generator, baseline: str, evaluations: int, noise: float) -> Curve:
    """A seed's curve, evaluated before its first step, too."""
    done = np.linspace(0, 1, evaluations + 1)
    scale = BASELINES[baseline] * np.exp(SCATTER["T"] * rng.standard_normal())
    accuracy = FIRST + (LAST - FIRST) * -np.expm1(-done / scale) + noise * rng.standard_normal(len(done))
    seconds = 100 * done * np.exp(SCATTER["seconds"] * rng.standard_normal())
    return Curve("simulated", None, {"steps": 40 * done, "seconds": seconds}, {"accuracy": accuracy})


if __name__ == "__main__":
    main()
