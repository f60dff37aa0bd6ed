"""How often do the words of docs/results.md call two groups of one configuration different? Resampled real runs.

    python benchmarks/false_alarms.py

Groups are drawn with replacement from the seeds of one cell of the stored results of claims, so every true ratio is 1,
and every gain or loss is false. Three pipelines, each from curves to words:

- "sequence": three arms and three contrasts as claim 2 has them, with its looks, its pooled spread and its fixed order;
  the level is from three further draws, its pilots. It counts draws with any gain or loss among the three words.
- "sequence within seeds": the same with the three arms of claim 2 itself, whose curves are shuffled among the arms
  within each seed, so that seeds stay paired. Arms that differ widen the spread here.
- "pair": one secondary contrast of two arms with 5 and with 8 seeds, and the level from the plateau of its baseline.

Writes benchmarks/results/<date>_false_alarms.json. The rates' choice by pilots is no part: its runs are too few to draw
from, and the claim's runs have other seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import claim_words
import frame
import numpy as np
from decisions import Times, decided, in_sequence

from winnow.records import FloatArray
from winnow.seeds import generator
from winnow_lab.compare.curve import Curve
from winnow_lab.compare.speed_up import LAST, MOST_FALL, SHARE, SeedTime, mean_fall, seed_time

ARMS, LOOKS, PILOTS, FEWEST = 3, (8, 12, 16), 3, 8
CONTRASTS = (("0", "1"), ("2", "0"), ("2", "1"))  # in the order of claim 2
ALARM = ("gain", "loss")


@dataclass(frozen=True, eq=False)
class Pool:
    """The seeds of a cell."""

    name: str
    steps: FloatArray  # [P]
    curves: FloatArray  # [S, P]

    @cached_property
    def falls(self) -> FloatArray:
        """[S] the largest fall of each seed."""
        return np.array([mean_fall([curve]) for curve in self.curves])

    @cached_property
    def ends(self) -> FloatArray:
        """[S] the mean accuracy over the last third of each seed."""
        return self.curves[:, -int(np.ceil(self.curves.shape[1] / LAST)) :].mean(axis=1)

    def times(self, level: float) -> list[SeedTime]:
        """Of every seed, to a level."""
        of = (Curve("drawn", None, {"steps": self.steps}, {"accuracy": y}) for y in self.curves)
        return [seed_time(curve, "accuracy", level) for curve in of]


def main() -> None:
    options = frame.parse(frame.parser(__doc__, trials=(1000, "draws from each cell"), seed=0))
    found: dict[str, Any] = {"sequence": {}, "pair, 5 seeds": {}, "pair, 8 seeds": {}}
    for pool in pools():
        rng = generator(options.seed, "false alarms", pool.name)
        found["sequence"][pool.name] = shares(sequence(rng, pool) for _ in range(options.trials))
        for seeds in (5, 8):
            drawn = (pair(rng, pool, seeds) for _ in range(options.trials))
            found[f"pair, {seeds} seeds"][pool.name] = shares(drawn)
    if (within := of_claim()) is not None:
        rng = generator(options.seed, "false alarms", "within seeds")
        drawn = (shuffled(rng, *within) for _ in range(options.trials))
        found["sequence within seeds"] = {"claim 2": shares(drawn)}
    found["any gain or loss"] = {pipeline: over(cells) for pipeline, cells in found.items()}
    frame.finish("false_alarms", found, options, packages=("winnow-rl", "numpy"), show=("any gain or loss",))


def pools() -> Iterator[Pool]:
    """Every different cell with enough seeds."""
    seen = set()
    for claim in claim_words.claims():
        named = claim_words.newest(claim["sweep"])
        for label, cell in (named[1]["curves"] if named else {}).items():
            curves = np.array(list(cell["seeds"].values()))
            if len(curves) >= FEWEST and curves.tobytes() not in seen:
                seen.add(curves.tobytes())
                yield Pool(f"{claim['sweep']}, {label}", np.array(cell["steps"]), curves)


def of_claim() -> tuple[list[Pool], float] | None:
    """(arms with the same seeds in the same order, level) of the claim that is registered with looks."""
    (claim,) = (claim for claim in claim_words.claims() if "looks" in claim)
    named = claim_words.newest(claim["sweep"])
    if named is None:
        return None
    arms = [
        Pool(label, np.array(cell["steps"]), np.array([cell["seeds"][seed] for seed in sorted(cell["seeds"], key=int)]))
        for label, cell in named[1]["curves"].items()
    ]
    return arms, float(claim["level"])


def sequence(rng: np.random.Generator, pool: Pool) -> list[str]:
    """The words of three contrasts between three draws of one cell."""
    draws = rng.integers(len(pool.curves), size=(ARMS, LOOKS[-1]))
    pilots = rng.integers(len(pool.curves), size=PILOTS)
    every = pool.times(SHARE * float(pool.ends[pilots].mean()))
    arms = [[every[seed] for seed in draw] for draw in draws]
    return words(arms)


def shuffled(rng: np.random.Generator, pools: Sequence[Pool], level: float) -> list[str]:
    """The words with arms shuffled within each of the seeds drawn."""
    every = [pool.times(level) for pool in pools]
    drawn = [(int(seed), rng.permutation(ARMS)) for seed in rng.integers(len(every[0]), size=LOOKS[-1])]
    arms = [[every[order[arm]][seed] for seed, order in drawn] for arm in range(ARMS)]
    return words(arms)


def words(arms: Sequence[Sequence[SeedTime]]) -> list[str]:
    """The words of the sequence for these arms; undecided if a seed starts above the level."""
    known = {str(arm): timed for arm, of in enumerate(arms) if (timed := as_times(of)) is not None}
    if len(known) < len(arms):
        return ["undecided"] * len(CONTRASTS)
    return [decision.word for decision, _ in in_sequence(known, CONTRASTS, LOOKS)]


def pair(rng: np.random.Generator, pool: Pool, seeds: int) -> list[str]:
    """The word of one secondary contrast between two draws of one cell."""
    one, two = rng.integers(len(pool.curves), size=(2, seeds))
    every = pool.times(SHARE * float(pool.ends[one].mean()))
    baseline, group = (as_times([every[seed] for seed in draw]) for draw in (one, two))
    if baseline is None or group is None or pool.falls[one].mean() > MOST_FALL:
        return ["undecided"]
    return [decided(baseline, group).word]


def as_times(found: Sequence[SeedTime]) -> Times | None:
    """In steps, at the horizon for seeds that never reach the level; None if one starts above it."""
    if any(time.ending == "at the first" for time in found):
        return None
    return Times(tuple(time.x["steps"] for time in found), tuple(not time.reached for time in found))


def shares(drawn: Iterator[list[str]]) -> dict[str, float]:
    """The share of draws with any gain or loss, and of each word among all words."""
    every = list(drawn)
    counts = Counter(word for one in every for word in one)
    total = sum(counts.values())
    alarms = sum(any(word in ALARM for word in one) for one in every)
    return {"any gain or loss": round(alarms / len(every), 4)} | {
        word: round(counts[word] / total, 4) for word in ("gain", "loss", "equal", "undecided")
    }


def over(cells: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Mean and highest share of draws with any gain or loss, over cells."""
    alarms = [cell["any gain or loss"] for cell in cells.values()]
    return {"cells": len(alarms), "mean": round(float(np.mean(alarms)), 4), "highest": max(alarms)}


if __name__ == "__main__":
    main()
