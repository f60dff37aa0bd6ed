"""How work is dealt to the ranks of a run: the same answer on every rank, from what all of them know."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from winnow.records import FloatArray, IntArray


def deal(loads: Sequence[float], parts: int) -> list[list[int]]:
    """Places of `loads` dealt to `parts`, each part in ascending order: the largest first, each to the part that has
    least so far (Graham 1969, doi 10.1137/0117039, whose bound is 4/3 of the best).

    Equal loads go round the parts in their order. A load of 0 costs a part nothing, and goes to the one with fewest.
    """
    dealt: list[list[int]] = [[] for _ in range(parts)]
    held = np.zeros(parts)
    for place in np.argsort(-np.asarray(loads, dtype=np.float64), kind="stable"):
        least = min(range(parts), key=lambda part: (held[part], len(dealt[part])))
        dealt[least].append(int(place))
        held[least] += loads[place]
    return [sorted(part) for part in dealt]


def in_runs(loads: Sequence[float] | IntArray | FloatArray, parts: int) -> list[list[int]]:
    """Places of `loads` cut into `parts` runs of neighbours of about equal load: a place goes where its middle lies.

    No part has more than its share and the largest load, and what stands side by side (rollouts of a prompt, of which
    a part reads the prompt once) is parted at most `parts` - 1 times.
    """
    weights = np.asarray(loads, dtype=np.float64)
    middles = np.cumsum(weights) - weights / 2
    owners = np.minimum((parts * middles / max(weights.sum(), 1e-300)).astype(np.int64), parts - 1)
    return [np.flatnonzero(owners == part).tolist() for part in range(parts)]
