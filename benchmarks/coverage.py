"""How often do the printed intervals contain the true value, and how often is the paired test wrong?

    python benchmarks/coverage.py

Problems are drawn from populations of pass rates: Beta distributions with shares of problems that are never and always
solved. Evaluations of 30 (AIME24), 40 (AMC23), 272 (Minerva), 500 (MATH500) and 1,319 (GSM8K) problems are simulated.
Every candidate method gives an interval for every evaluation. Its coverage is the share of intervals that contain the
population's mean, which has a closed form. Seeds, averages over benchmarks and paired differences are treated likewise.
The candidates are computed for all evaluations at once (coverage_candidates.py). Those that winnow uses are compared
with winnow's functions on some evaluations, and the benchmark exits if they differ. Bootstraps and powers use
--resampled evaluations, the largest benchmark a quarter of --repetitions.

The Monte-Carlo standard error of a share near 95% from R evaluations is 0.22 / sqrt(R). Writes
benchmarks/results/<date>_coverage.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import coverage_candidates as candidates
import frame
import numpy as np
from coverage_candidates import Limits
from coverage_populations import (
    AVERAGED,
    CHANGES,
    PAIRED,
    POPULATIONS,
    SEEDS,
    Change,
    Population,
    better,
    few_won_many_lost,
    redrawn,
    unchanged,
)
from scipy.stats import binom

from winnow.algos import intervals
from winnow.algos.intervals import paired_test
from winnow.records import FloatArray, IntArray
from winnow.seeds import generator

SIZES = (30, 40, 272, 500, 1319)
CHECKED = 10  # evaluations of each kind that are compared with winnow's functions
Cells = dict[str, dict[str, tuple[float, float]]]  # candidate, place: coverage and mean width


PASS_AT_4 = np.array([1 - np.prod([(16 - c - j) / (16 - j) for j in range(4)]) for c in range(17)])
SAMPLES = (1, 4, 8, 16)


def main() -> None:
    options = frame.parse(
        frame.parser(
            __doc__,
            repetitions=(10_000, "evaluations of each population"),
            resampled=(2_000, "evaluations for bootstraps and powers"),
            seed=0,
        )
    )
    begin = time.perf_counter()
    fewer = argparse.Namespace(
        **vars(options) | {"repetitions": options.resampled}
    )  # a power needs fewer repetitions than a coverage
    report = {
        "standard_error": round(float(np.sqrt(0.95 * 0.05 / options.repetitions)), 4),
        "over_problems": over_problems(options),
        "of_average": of_average(options),
        "of_difference": of_difference(options),
        "over_seeds": over_seeds(options),
        "paired_test": {"false_alarms": false_alarms(options), "power": power(fewer), "needed": needed()},
        "seconds": round(time.perf_counter() - begin, 1),
    }
    frame.finish("coverage", report, options, packages=("winnow-rl", "numpy", "scipy"), show=("seconds",))


def counted(limits: Limits, truth: float) -> tuple[float, float]:
    """Coverage and mean width."""
    low, high = limits
    return float(((low <= truth + 1e-12) & (truth - 1e-12 <= high)).mean()), float((high - low).mean())


def summary(cells: Cells) -> dict[str, Any]:
    """Per candidate: mean, lowest and highest coverage with their places, the mean width, and every coverage."""
    report = {}
    for name, places in cells.items():
        shares = {place: share for place, (share, _) in places.items()}
        lowest, highest = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
        report[name] = {
            "mean": round(float(np.mean(list(shares.values()))), 4),
            "lowest": f"{shares[lowest]:.4f} at {lowest}",
            "highest": f"{shares[highest]:.4f} at {highest}",
            "width": round(float(np.mean([width for _, width in places.values()])), 4),
            "all": by_population(shares),
        }
    return report


def by_population(shares: Mapping[str, float]) -> dict[str, str]:
    """One line per group of places, by the last part of their names: "avg@1 0.9493, avg@4 0.9501"."""
    lines: dict[str, list[str]] = {}
    for place, share in shares.items():
        population, _, kind = place.rpartition(", ")
        lines.setdefault(population, []).append(f"{kind} {share:.4f}")
    return {population: ", ".join(kinds) for population, kinds in lines.items()}


def repetitions(size: int, options: argparse.Namespace) -> int:
    """A quarter for the largest benchmark, which is the slowest and the least uncertain."""
    return int(options.repetitions if size <= 500 else options.repetitions // 4)


def agree(own: Callable[[int], intervals.Interval], limits: Limits) -> None:
    """Exit if a candidate differs from winnow's function, which also clips at the ends of the scale."""
    low, high = limits
    for row in range(CHECKED):
        expected = np.clip((low[row], high[row]), -1, 1)
        if not np.allclose(own(row), expected, atol=1e-9):
            raise SystemExit(f"winnow's interval {own(row)} is not the candidate's {expected}")


def evaluations(population: Population, size: int, options: argparse.Namespace) -> dict[str, tuple[FloatArray, float]]:
    """Per kind: [R, P] values, and their true mean."""
    rng = generator("coverage", options.seed, repr(population), size)
    rates = population.draw(rng, (repetitions(size, options), size))
    found = {f"avg@{k}": (rng.binomial(k, rates) / k, population.mean) for k in SAMPLES}
    return found | {"pass@4 of 16": (PASS_AT_4[rng.binomial(16, rates)], population.pass_at(4))}


def over_problems(options: argparse.Namespace) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for size in SIZES:
        cells: Cells = {}
        for name, population in POPULATIONS.items():
            for kind, (values, truth) in evaluations(population, size, options).items():
                place = f"{name}, {kind}"
                for candidate in candidates.FAST:
                    limits = candidate(values)
                    cells.setdefault(candidate.__name__, {})[place] = counted(limits, truth)
                    if candidate is candidates.wilson_t_widened:
                        agree(lambda row, values=values: intervals.over_problems(values[row]), limits)  # type: ignore[misc]
                if size <= 500 and kind in ("avg@1", "avg@8"):
                    for candidate in candidates.RESAMPLING:
                        cells.setdefault(candidate.__name__, {})[place] = counted(
                            candidate(values[: options.resampled]), truth
                        )
        report[str(size)] = summary(cells)
    return report


def of_average(options: argparse.Namespace) -> dict[str, Any]:
    report = {}
    for sizes in ((500, 272, 675), (500, 272, 675, 30, 40)):
        cells: Cells = {}
        for mix, names in AVERAGED.items():
            for k in (1, 8):
                rng = generator("average", options.seed, mix, k, len(sizes))
                drawn = [POPULATIONS[name] for name, _ in zip(names, sizes, strict=False)]
                shapes = [(options.repetitions, size) for size in sizes]
                parts = [rng.binomial(k, p.draw(rng, shape)) / k for p, shape in zip(drawn, shapes, strict=True)]
                for candidate in candidates.AVERAGES:
                    limits = candidate(parts)
                    truth = float(np.mean([population.mean for population in drawn]))
                    cells.setdefault(candidate.__name__, {})[f"{mix}, avg@{k}"] = counted(limits, truth)
                agree(lambda row, parts=parts: intervals.of_average([part[row] for part in parts]), limits)  # type: ignore[misc]
        report[" + ".join(map(str, sizes))] = summary(cells)
    return report


def steps_of(name: str, change: Change, size: int, k: int, options: argparse.Namespace) -> tuple[IntArray, IntArray]:
    """[R, P] correct rollouts of two models on the same problems."""
    population = POPULATIONS[name]
    rng = generator("pairs", options.seed, name, size, k)
    rates = population.draw(rng, (repetitions(size, options), size))
    others = change(rng, rates, population)
    return rng.binomial(k, others), rng.binomial(k, rates)


def of_difference(options: argparse.Namespace) -> dict[str, Any]:
    report = {}
    for size in (30, 40, 500):
        cells: Cells = {}
        for name in PAIRED:
            for change, truth in CHANGES.items():
                for k in (1, 8):
                    first, second = (counts / k for counts in steps_of(name, change, size, k, options))
                    for candidate in (candidates.normal, candidates.t, candidates.difference_t_widened):
                        limits = candidate(first - second)
                        cells.setdefault(candidate.__name__, {})[f"{name}, {change.__name__}, avg@{k}"] = counted(
                            limits, truth(POPULATIONS[name].mean)
                        )
                    agree(lambda row, a=first, b=second: intervals.of_difference(a[row], b[row]), limits)  # type: ignore[misc]
        report[str(size)] = summary(cells)
    return report


def over_seeds(options: argparse.Namespace) -> dict[str, Any]:
    report = {}
    for size in (3, 4, 5, 10):
        cells: Cells = {}
        for name, (draw, truth) in SEEDS.items():
            values = draw(generator("seeds", options.seed, name, size), (options.repetitions, size))
            for candidate in (candidates.normal, candidates.t, candidates.percentile, candidates.bca):
                limits = candidate(values)
                cells.setdefault(candidate.__name__, {})[name] = counted(limits, truth)
                if candidate is candidates.t:
                    own = [intervals.over_seeds(row) for row in values[:CHECKED]]
                    if not np.allclose(own, np.array(limits).T[:CHECKED]):
                        raise SystemExit("winnow's interval over seeds is not the candidate's")
        report[str(size)] = summary(cells)
    return report


def rejected(first: IntArray, second: IntArray, k: int) -> dict[str, float]:
    """Share of p-values at or below 5% by each candidate; winnow's test is called for some of them."""
    found = candidates.p_values(first - second)
    for row in range(CHECKED):
        own = paired_test(first[row] / k, second[row] / k, seed=0).p_value
        if abs(own - found["sign_flips_mid_p"][row]) > 1e-9:
            raise SystemExit(f"winnow's p-value {own} is not the candidate's {found['sign_flips_mid_p'][row]}")
    return {name: round(float((values <= 0.05).mean()), 4) for name, values in found.items()}


def false_alarms(options: argparse.Namespace) -> dict[str, Any]:
    """False alarms of equal models, by candidate and size: mean, highest and all. Skewed differences are separate."""
    report: dict[str, Any] = {}
    nulls: Sequence[Change] = (unchanged, redrawn, few_won_many_lost)
    for size in SIZES:
        found: dict[str, dict[str, float]] = {}
        for name in ("0.10", "0.35", "0.70"):
            for change in nulls:
                for k in (1, 4, 8):
                    for test, share in rejected(*steps_of(name, change, size, k, options), k).items():
                        found.setdefault(test, {})[f"{name}, {change.__name__}, avg@{k}"] = share
        report[str(size)] = {test: alarms(shares) for test, shares in found.items()}
    return report


def alarms(shares: Mapping[str, float]) -> dict[str, Any]:
    skewed = {place: share for place, share in shares.items() if few_won_many_lost.__name__ in place}
    others = [share for place, share in shares.items() if place not in skewed]
    return {
        "mean": round(float(np.mean(others)), 4),
        "highest": max(others),
        "highest_of_skewed": max(skewed.values()),
        "all": by_population(shares),
    }


def power(options: argparse.Namespace) -> dict[str, Any]:
    """Share of p-values at or below 5% for models that differ."""
    return {
        "one sample, by the share of problems on which they differ": {
            f"{size} problems, difference {by}": {
                f"{apart}": discordant(size, by, apart, options) for apart in APART if apart >= by
            }
            for size in SIZES
            for by in BY
        },
        "every problem nearer to 1, mean 0.35": {
            f"{size} problems, difference {by}, avg@{k}": rejected(
                *steps_of("0.35", partial(better, by), size, k, options), k
            )
            for size in SIZES
            for by in BY
            for k in (1, 4, 8)
        },
    }


BY = (0.02, 0.05, 0.1)
APART = (0.05, 0.1, 0.2, 0.4)


def discordant(size: int, by: float, apart: float, options: argparse.Namespace) -> float:
    """Power of the mid-p test if the share `apart` of the problems is won or lost, with `by` more won than lost."""
    rng = generator("discordant", options.seed, size, repr(by), repr(apart))
    differing = rng.binomial(size, apart, options.repetitions)
    fewer = rng.binomial(differing, (1 + by / apart) / 2)
    fewer = np.minimum(fewer, differing - fewer)
    p_value = 2 * binom.cdf(fewer, differing, 0.5) - binom.pmf(fewer, differing, 0.5)
    return round(float((p_value <= 0.05).mean()), 4)


def needed() -> dict[str, int]:
    """lost problems -> won problems that give a p-value of at most 5%; one sample per problem."""
    found = {}
    for lost in (0, 1, 2, 3, 5, 10, 20, 50, 100):
        outcome = [np.array([1.0] * won + [-1.0] * lost) for won in range(lost + 1, 3 * lost + 10)]
        found[str(lost)] = next(
            int((signs > 0).sum())
            for signs in outcome
            if paired_test((signs > 0) * 1.0, (signs < 0) * 1.0, seed=0).p_value <= 0.05
        )
    return found


if __name__ == "__main__":
    main()
