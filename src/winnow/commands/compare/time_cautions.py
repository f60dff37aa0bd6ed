"""Notes on the times to the level: how longer runs or more evaluations could change them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from winnow.commands.compare.curve import Curve
from winnow.commands.compare.groups import SeedGroup
from winnow.commands.compare.plateau import Plateau
from winnow.commands.compare.seed_times import SeedTime
from winnow.run_view.configuration import at

FEW = 4  # evaluations before the level: below, the mean of three of them moves a speed-up towards 1


def time_cautions(
    groups: Sequence[SeedGroup],
    baseline: str,
    measure: str,
    plateau: Plateau,
    times: Mapping[str, Sequence[SeedTime]],
) -> Iterator[str]:
    """The notes as sentences. Those on times of seeds need two groups at least."""
    for group in groups:
        yield from _cut(group)
        yield from _lacks_evaluations(group, measure)
    if len(groups) < 2:
        return
    if plateau.level is None:
        yield f"{baseline}: its plateau is {plateau.value:.3g}, so there is no level above 0 and no speed-up"
    for label, seeds in times.items():
        yield from _unreached(label, seeds)
        yield from _at_last(label, seeds)
        yield from _soon(label, seeds)
    if plateau.still_rising:
        yield _rising(baseline, plateau)


def _rising(baseline: str, plateau: Plateau) -> str:
    if math.isnan(plateau.gain):
        return f"{baseline}: one evaluation does not show whether it still rises; evaluate during training"
    scale, unit = (100.0, " points") if plateau.share else (1.0, "")
    gain, bound, most = (f"{scale * number:.3g}" for number in (plateau.gain, plateau.bound, plateau.most_gain))
    return (
        f"{baseline}: still rising, as far as its runs show; over the last third of its evaluations it gains "
        f"{gain}{unit}, with a 95% upper bound of {bound}, where {most} is the most for a plateau; train longer, or "
        f"with more seeds"
    )


def _cut(group: SeedGroup) -> Iterator[str]:
    """Note that a group's mean curve ends where the first of its seeds ends."""
    lasts = {curve.source: float(curve.x["steps"][-1]) for curve in group.curves if "steps" in curve.x}
    if len(lasts) > 1 and min(lasts.values()) < max(lasts.values()):
        first = min(lasts, key=lambda source: lasts[source])
        yield (
            f"{group.label}: its curve ends after {lasts[first]:g} of {max(lasts.values()):g} steps, with the last "
            f"evaluation of {first}; omit that seed, or train it as far as the others"
        )


def _lacks_evaluations(group: SeedGroup, measure: str) -> Iterator[str]:
    """Notes on seeds that lack an evaluation of all other seeds. Evaluations by the clock are exempt: they are at
    different steps for each seed.
    """
    by_the_clock = any(at(run.config, "evaluate", "every_minutes") for run in group.runs)
    if len(group.curves) < 2 or by_the_clock or any("steps" not in curve.x for curve in group.curves):
        return
    steps = [_steps(curve, measure) for curve in group.curves]
    for place, curve in enumerate(group.curves):
        others = set.intersection(*(steps[:place] + steps[place + 1 :]))
        lacking = sorted(step for step in others - steps[place] if step < max(steps[place]))
        if lacking:
            listed = ", ".join(f"{step:g}" for step in lacking[:3]) + ", ..." * (len(lacking) > 3)
            yield (
                f"{group.label}: {curve.source} lacks the evaluation after {listed} steps, which the other seeds have; "
                f"its time to the level is less certain than theirs"
            )


def _steps(curve: Curve, measure: str) -> set[float]:
    return set(curve.x["steps"][np.isfinite(curve.y[measure])].tolist())


def _unreached(label: str, seeds: Sequence[SeedTime]) -> Iterator[str]:
    never = [seed for seed in seeds if seed.ending == "never"]
    if never:
        yield (
            f"{label}: {len(never)} of {len(seeds)} seeds never reached the level{_named(never)}, so the speed-up has "
            f"no interval, and at most a bound"
        )
    early = [seed for seed in seeds if seed.ending == "at the first"]
    if early:
        yield (
            f"{label}: {len(early)} of {len(seeds)} seeds are above the level at their first evaluation"
            f"{_named(early)}, so their time to it is not known; evaluate before and early in training"
        )


def _at_last(label: str, seeds: Sequence[SeedTime]) -> Iterator[str]:
    late = [seed for seed in seeds if seed.at_last]
    if late:
        yield (
            f"{label}: {len(late)} of {len(seeds)} seeds first reach the level at their last evaluation{_named(late)}; "
            f"no later one confirms it, and longer runs may give another speed-up"
        )


def _soon(label: str, seeds: Sequence[SeedTime]) -> Iterator[str]:
    places = [seed.evaluations for seed in seeds if seed.reached]
    if places and (mean := float(np.mean(places))) < FEW:
        yield (
            f"{label}: reaches the level {mean:.1f} evaluations after its first one, on average; with fewer than {FEW} "
            f"a speed-up is biased towards 1: evaluate more often"
        )


def _named(seeds: Sequence[SeedTime]) -> str:
    names = [seed.seed for seed in seeds if seed.seed is not None]
    return f" ({', '.join(names[:5])}{', ...' * (len(names) > 5)})" if names else ""
