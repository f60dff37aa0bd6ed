"""How often is `winnow compare` right about two groups of seeds, simulated ones and runs of one configuration?

    python benchmarks/equal_groups.py
    python benchmarks/equal_groups.py --runs sweeps/many_seeds

Curves are simulated, and compared by winnow's functions. A seed's accuracy goes from 36% to 83% as 1 - exp(-t / T),
where t is the completed share of the run. T varies by `--scatter` percent, the limit by half a point, the seconds
per step by 2%, and each evaluation by `--noise` tenths of a point. A "level" baseline has T = 1/9 and is within 0.2
points of its limit after two thirds of the run; a "rising" one has T = 2/3. The other group is "equal", or has the same
accuracy in two thirds of the seconds ("cheaper"), or a T that is shorter by a third ("faster"). Groups are compared by
seconds, seed by seed ("paired", with correlation 0 or 0.5 between equal seeds) and as different seeds ("Welch").
For each setting the result contains:

- coverage: the share of intervals that contain the true speed-up;
- false alarms: the share of intervals of equal groups that do not contain 1;
- comparisons without an interval, because a seed never reached the level or started above it;
- the median half-width of the interval of the ratio, in percent;
- baselines that are reported as "still rising";
- comparisons that would have no interval without the means of two evaluations at the ends of a curve.

With --runs, two disjoint groups of 3 and of 5 seeds are drawn from the runs of each label, once per trial. A label with
fewer than 2 k seeds is drawn in groups of half its seeds, rounded down; one with fewer than 4 seeds is omitted. Pairs
then consist of unrelated seeds. Draws of one label share seeds, so their shares are less certain than those of the same
number of independent comparisons. Writes benchmarks/results/<date>_equal_groups.json.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import frame
import numpy as np

from winnow.seeds import generator
from winnow_lab.compare.curve import AXES, Curve
from winnow_lab.compare.groups import SeedGroup, seed_groups
from winnow_lab.compare.inputs import named_inputs
from winnow_lab.compare.speed_up import TimeRatio, plateau_of, seed_time, smoothed, time_ratio

ACCURACY = "accuracy"
FIRST, LAST, LIMIT_SCATTER = 0.36, 0.83, 0.005  # accuracies of the bundled policy in configs/sweeps/pods.toml
SECONDS_SCATTER = 0.02
BASELINES = {"level": 1 / 9, "rising": 2 / 3}
TRUTHS = {"equal": (1.0, 1.0), "cheaper": (1.0, 1.5), "faster": (1.5, 1.0)}  # divisors of T, of the seconds per step
SEEDS = (3, 5, 8)
EVALUATIONS = (10, 20, 40)
SHARED = (0.0, 0.5)  # correlation of the T of two runs of one seed
METHODS = ("paired", "Welch")


def main() -> None:
    made = frame.parser(
        __doc__,
        trials=(400, "comparisons of each setting"),
        noise=(5, "standard deviation of an evaluation, in tenths of a point"),
        scatter=(10, "standard deviation of log T, in percent"),
        seed=0,
    )
    made.add_argument("--runs", nargs="+", metavar="FOLDER", help="sweeps or runs whose labels have many seeds")
    options = frame.parse(made)
    begin = time.perf_counter()
    report = {"real runs": resampled(options)} if options.runs else simulated(options)
    options.runs = [frame._shared(folder) for folder in options.runs or ()]
    frame.finish(
        "equal_groups_of_runs" if options.runs else "equal_groups",
        {**report, "seconds": round(time.perf_counter() - begin, 1)},
        options,
        packages=("winnow-rl", "numpy"),
        show=("real runs",) if options.runs else ("summary",),
    )


def simulated(options: argparse.Namespace) -> dict[str, Any]:
    """Results per setting, and over all settings."""
    places = itertools.product(BASELINES, TRUTHS, SEEDS, EVALUATIONS, SHARED)
    settings = [
        {"baseline": baseline, "truth": truth, "seeds": seeds, "evaluations": evaluations, "shared": shared}
        | counted(baseline, truth, seeds, evaluations, shared, options)
        for baseline, truth, seeds, evaluations, shared in places
    ]
    return {"settings": settings, "summary": summary(settings)}


def summary(settings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean, lowest and highest of the quoted results, over the settings."""

    def over(name: str, method: str | None = None, **of: Any) -> dict[str, float]:
        chosen = [s for s in settings if all(s[key] == value for key, value in of.items())]
        numbers = [s[name] if method is None else s[method][name] for s in chosen]
        return {"mean": round(float(np.mean(numbers)), 4), "lowest": min(numbers), "highest": max(numbers)}

    alarms, halves = "difference shown", "median half-width in percent"
    return {
        "false alarms": {f"{m}, {n} seeds": over(alarms, m, truth="equal", seeds=n) for m in METHODS for n in SEEDS},
        "half-width": {f"{m}, {n} seeds": over(halves, m, truth="equal", seeds=n) for m in METHODS for n in SEEDS},
        "coverage": {
            f"{m}, {truth}, {n} evaluations": over("coverage", m, truth=truth, evaluations=n)
            for m in METHODS
            for truth in TRUTHS
            for n in EVALUATIONS
        },
        "still rising": {
            f"{b}, {n} seeds": over("still rising", baseline=b, seeds=n) for b in BASELINES for n in SEEDS
        },
        "no interval": {b: over("no interval", "paired", baseline=b, truth="equal") for b in BASELINES},
        "no interval without the ends": {
            b: over("no interval without the ends", baseline=b, truth="equal") for b in BASELINES
        },
    }


def counted(
    baseline: str, truth: str, seeds: int, evaluations: int, shared: float, options: argparse.Namespace
) -> dict[str, Any]:
    """method -> shares of the comparisons of one setting by seconds."""
    rng = generator(options.seed, "equal groups", baseline, truth, seeds, evaluations, str(shared))
    faster, cheaper = TRUTHS[truth]
    found: dict[str, list[TimeRatio]] = {method: [] for method in METHODS}
    rising = without_ends = 0
    for _ in range(options.trials):
        common = rng.standard_normal(seeds)
        own = np.sqrt(1 - shared) * rng.standard_normal((2, seeds)) + np.sqrt(shared) * common
        one = [seed_curve(rng, BASELINES[baseline], 1.0, z, evaluations, options) for z in own[0]]
        two = [seed_curve(rng, BASELINES[baseline] / faster, cheaper, z, evaluations, options) for z in own[1]]
        for method, ratio in compared(one, two, "seconds").items():
            found[method].append(ratio)
        plateau = plateau_of(one, ACCURACY)
        rising += plateau.still_rising
        without_ends += not all(reached_without_ends(curve, plateau.level or 1.0) for curve in (*one, *two))
    return {
        "still rising": round(rising / options.trials, 4),
        "no interval without the ends": round(without_ends / options.trials, 4),
        **{method: shares(ratios, faster * cheaper) for method, ratios in found.items()},
    }


def reached_without_ends(curve: Curve, level: float) -> bool:
    """Return whether a curve reaches the level if only means of three evaluations count."""
    inner = smoothed(curve.y[ACCURACY])[1:-1]
    return bool(inner[0] < level <= inner.max())


def seed_curve(
    rng: np.random.Generator, scale: float, cheaper: float, z: float, evaluations: int, options: argparse.Namespace
) -> Curve:
    """A simulated run with evaluations, including one before its first step."""
    done = np.linspace(0, 1, evaluations + 1)
    limit = LAST + LIMIT_SCATTER * rng.standard_normal()
    accuracy = FIRST + (limit - FIRST) * -np.expm1(-done / (scale * np.exp(options.scatter / 100 * z)))
    accuracy += options.noise / 1000 * rng.standard_normal(len(done))
    seconds = 100 * done / cheaper * np.exp(SECONDS_SCATTER * rng.standard_normal())
    return Curve("simulated", None, {"steps": 40 * done, "seconds": seconds}, {ACCURACY: accuracy})


def compared(one: Sequence[Curve], two: Sequence[Curve], axis: str) -> dict[str, TimeRatio]:
    """The second group against the first, as paired and as unpaired seeds. Empty if the axis is missing."""
    level = plateau_of(one, ACCURACY).level
    if level is None:
        return {}
    found = {}
    for method, names in (
        ("paired", [str(i) for i in range(len(two))]),
        ("Welch", [f"other {i}" for i in range(len(two))]),
    ):
        baseline = [replace(seed_time(curve, ACCURACY, level), seed=str(i)) for i, curve in enumerate(one)]
        group = [replace(seed_time(curve, ACCURACY, level), seed=name) for name, curve in zip(names, two, strict=True)]
        ratio = time_ratio(baseline, group, axis)
        if ratio is not None:
            found[method] = ratio
    return found


def shares(ratios: Sequence[TimeRatio], truth: float) -> dict[str, float]:
    """Shares of the comparisons, and of the intervals."""
    with_interval = [ratio for ratio in ratios if ratio.has_interval]
    halves = [np.sqrt(ratio.high / ratio.low) - 1 for ratio in with_interval]
    count = max(1, len(with_interval))
    found = {
        "no interval": round(1 - len(with_interval) / len(ratios), 4),
        "coverage": round(sum(r.low <= truth <= r.high for r in with_interval) / count, 4),
        "difference shown": round(sum(r.shows_difference for r in with_interval) / count, 4),
        "median half-width in percent": round(100 * float(np.median(halves)), 1) if halves else None,
    }
    if with_interval:
        found["median ratio over the true one"] = round(float(np.median([r.ratio / truth for r in with_interval])), 3)
    return found


def resampled(options: argparse.Namespace) -> dict[str, Any]:
    """label -> shares of the comparisons of two groups of its seeds."""
    groups, notes = seed_groups(named_inputs(options.runs).inputs)
    found: dict[str, Any] = {"notes": [note.replace("\n", " ") for note in notes]}
    for group in groups:
        found[group.label] = {"seeds": len(group.curves)} | {
            f"groups of {size}": drawn(group, size, options)
            for size in dict.fromkeys(min(asked, len(group.curves) // 2) for asked in (3, 5))
            if size >= 2
        }
    return found


def drawn(group: SeedGroup, size: int, options: argparse.Namespace) -> dict[str, Any]:
    rng = generator(options.seed, "draws of runs", group.label, size)
    axes = [axis for axis in AXES if all(axis in curve.x for curve in group.curves)]
    found: dict[str, list[TimeRatio]] = {}
    rising = 0
    for _ in range(options.trials):
        places = rng.permutation(len(group.curves))[: 2 * size]
        one, two = ([group.curves[place] for place in places[half::2]] for half in (0, 1))
        rising += plateau_of(one, ACCURACY).still_rising
        for axis in axes:
            for method, ratio in compared(one, two, axis).items():
                found.setdefault(f"{axis}, {method}", []).append(ratio)
    return {"still rising": rising / options.trials} | {key: shares(ratios, 1.0) for key, ratios in found.items()}


if __name__ == "__main__":
    main()
