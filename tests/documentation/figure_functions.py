"""What figures.toml computes figures with, besides plain Python."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from decimal import ROUND_HALF_DOWN, ROUND_HALF_UP, Decimal, localcontext
from math import exp, log
from statistics import fmean, median
from typing import Any

from doc_pages import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))
from claim_words import fall


def clock(seconds: float) -> str:
    """ "1:08" of minutes and seconds."""
    return f"{round(seconds) // 60}:{round(seconds) % 60:02d}"


def first(text: str) -> float:
    """The first number of "0.3812 at 0.97, most always solved", in percent."""
    return 100 * float(text.split()[0])


def cover(cell: Mapping[str, Any] | None) -> str:
    """ "85.1, 38.1 to 96.0", in percent, of a candidate in a coverage; empty where it was not measured."""
    if cell is None:
        return ""
    return f"{100 * cell['mean']:.1f}, {first(cell['lowest']):.1f} to {first(cell['highest']):.1f}"


def bracketed(text: str) -> str:
    """ "95.0% (93.0 to 97.3)" of "95.0, 93.0 to 97.3"."""
    mean, _, ends = text.partition(", ")
    return f"{mean}% ({ends})"


def spread(cell: Mapping[str, Any]) -> str:
    """A candidate's coverage, the lowest and the highest in brackets."""
    return bracketed(cover(cell))


def part(result: Any, method: str, truth: str, evaluations: str) -> str:
    """ "95.0, 93.0 to 97.3", in percent, of the speed-ups' coverage."""
    found = result["summary"]["coverage"][f"{method}, {truth}, {evaluations} evaluations"]
    return f"{100 * found['mean']:.1f}, {100 * found['lowest']:.1f} to {100 * found['highest']:.1f}"


def shown_between(result: Any, seeds: str, method: str) -> str:
    """ "4.7 to 6.0%" of trials that show a difference, over the cells and axes of a result of equal groups of runs."""
    groups = [cell[f"groups of {seeds}"] for name, cell in result["real runs"].items() if name != "notes"]
    shares = [
        100 * axis["difference shown"] for group in groups for name, axis in group.items() if name.endswith(method)
    ]
    return f"{min(shares):.1f} to {max(shares):.1f}%"


def of_seeds(result: Any, seeds: str, candidate: str, scatter: str) -> str:
    """Its coverage of one scatter, from lines such as "normal 0.9496, uniform 0.9176"."""
    lines = ", ".join(result["over_seeds"][seeds][candidate]["all"].values())
    (share,) = re.findall(rf"(?:^|, ){re.escape(scatter)} (\d\.\d+)", lines)
    return f"{100 * float(share):.1f}"


def gaps(result: Any, key: str, metric: str, form: str) -> str:
    """Of each number of tokens."""
    return ", ".join(format(found[metric], form) for found in result[key]["well"])


def peak(profile: Any, measured: str, rollouts: int) -> float:
    """MiB."""
    (found,) = (p for p in profile["points"] if (p["measured"], p["rollouts"]) == (measured, rollouts))
    return float(found["peak_bytes"]) / 2**20


def regret_of(result: Any, label: str) -> float:
    """The geometric mean over seeds of a cell's time over the best one's, where every seed reached the level."""
    best = {seed: min(of[seed] for of in result["times"].values() if of[seed]) for seed in result["times"][label]}
    return exp(fmean(log(time / best[seed]) for seed, time in result["times"][label].items()))


def rate(result: Any, arm: str, learning_rate: float) -> str:
    """ "63.0 (70.4)": an arm's mean accuracy at a rate and that of the last third, in percent, bold where chosen."""
    cell = result["cells"][f"{arm},learning_rate={learning_rate}"]
    bold = "**" * (result["chosen"][arm] == learning_rate)
    return f"{bold}{100 * cell['mean accuracy']:.1f} ({100 * cell['last third']:.1f}){bold}"


def printed(value: Any, form: str) -> set[str]:
    """A figure in its format: two texts where the stored number, which is itself rounded, lies halfway between them."""
    if not isinstance(value, float):
        return {format(value, form)}
    number, texts = Decimal(f"{value:.12g}"), set[str]()
    for direction in (ROUND_HALF_UP, ROUND_HALF_DOWN):
        with localcontext() as context:
            context.rounding = direction
            texts.add(format(number, form))
    return texts


FUNCTIONS = {
    function.__name__: function
    for function in (
        *(clock, first, cover, bracketed, spread, part, of_seeds, shown_between, gaps, peak, rate, regret_of, fall),
        *(list, median, min, max, sum, len, all),
    )
}
