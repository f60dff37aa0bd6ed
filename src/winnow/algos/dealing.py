"""How work is dealt to the ranks of a run: the same answer on every rank, from what all of them know."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


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
