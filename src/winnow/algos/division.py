"""How work is divided among the ranks of a run. Every rank computes the same result from data that all ranks have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from winnow.records import FloatArray, IntArray


def deal(loads: Sequence[float], parts: int) -> list[list[int]]:
    """Places of `loads` dealt to `parts`, each part in ascending order. The largest load comes first, and each goes to
    the part with the least load so far (Graham 1969, doi 10.1137/0117039, whose bound is 4/3 of the optimum).

    Equal loads go to the parts in turn. A load of 0 goes to the part with the fewest places among those with least
    load.
    """
    dealt: list[list[int]] = [[] for _ in range(parts)]
    held = np.zeros(parts)
    for place in np.argsort(-np.asarray(loads, dtype=np.float64), kind="stable"):
        least = min(range(parts), key=lambda part: (held[part], len(dealt[part])))
        dealt[least].append(int(place))
        held[least] += loads[place]
    return [sorted(part) for part in dealt]


def in_runs(loads: Sequence[float] | IntArray | FloatArray, parts: int) -> list[list[int]]:
    """Places of `loads` divided into `parts` runs of neighbours of about equal load. The middle of a load decides its
    part.

    No part has more than its share plus the largest load. At most `parts` - 1 pairs of neighbours are separated. This
    matters for rollouts of one prompt, as each part with some of them reads the prompt once.
    """
    weights = np.asarray(loads, dtype=np.float64)
    middles = np.cumsum(weights) - weights / 2
    owners = np.minimum((parts * middles / max(weights.sum(), 1e-300)).astype(np.int64), parts - 1)
    return [np.flatnonzero(owners == part).tolist() for part in range(parts)]
