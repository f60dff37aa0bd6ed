"""A control: GRPO with rewards that are permuted at random within each group. A policy must learn nothing from it.

    winnow train arithmetic --set advantage=examples/shuffled_rewards.py:shuffled

It is also an example of your own advantage: a function of the step's groups, named by its file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from winnow import Group
from winnow.algos.advantage import grpo
from winnow.records import FloatArray
from winnow.seeds import generator


def shuffled(groups: Sequence[Group]) -> list[FloatArray]:
    """`grpo` after a permutation of each group's kept outcomes."""
    return grpo([_shuffle(group) for group in groups])


def _shuffle(group: Group) -> Group:
    assert group.outcomes is not None
    assert group.keep is not None
    # The texts are the seed: a group of the same prompt in another step gets another order, a resumed run the same.
    kept = group.keep.nonzero()[0]
    order = generator("shuffled", group.prompt.id, *(rollout.text for rollout in group.rollouts)).permutation(kept)
    outcomes = list(group.outcomes)
    for place, source in zip(kept, order, strict=True):
        outcomes[place] = group.outcomes[source]
    return dataclasses.replace(group, outcomes=tuple(outcomes))
