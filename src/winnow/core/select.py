"""Which rollouts of a group are trained on: those that the selector keeps, among the verified ones.

With dynamic sampling, a group that would not contribute to the gradient is kept out as a whole.
"""

from __future__ import annotations

import numpy as np

from winnow.algos.advantage import check_credits
from winnow.algos.selectors import keep_verified
from winnow.core.members import Members
from winnow.families import AdvantageTraits
from winnow.options import Bound
from winnow.records import Group
from winnow.seeds import Rng


def fill_keep(members: Members, group: Group, step: int) -> Group:
    """The group with `keep` [N]. The selector gets the verified rollouts only, and a failed one is never kept.

    With dynamic sampling nothing is kept of a group without a signal, which further groups replace.
    """
    keep = keep_verified(members.select, group, Rng((members.config.seed, "select", step)))
    kept, replaces = group.fill(keep=keep), members.config.rollout.dynamic_sampling_rounds > 0
    return kept if not replaces or carries_signal(kept, members.advantage) else group.fill(keep=np.zeros_like(keep))


def carries_signal(group: Group, advantage: Bound[AdvantageTraits]) -> bool:
    """Whether the kept rollouts of a group contribute to the gradient: some of them have an advantage other than 0.

    The advantage is computed from this group alone, after selection and in chunks. Two kinds of advantage depend on
    more than the group. If it needs values or rewards per token, which are filled later, any kept rollout is enough. If
    its baseline is over the batch, any kept rollout with a reward other than 0 is enough.
    """
    verified = group.take(group.valid)
    keep, traits = verified.keep, advantage.traits
    if keep is None or not keep.any():
        return False
    if traits.baseline == "values" or traits.needs:
        return True
    if traits.baseline == "batch":
        return bool(np.any(verified.rewards[keep] != 0))
    (credit,) = check_credits(advantage([verified]), [verified])
    return any(np.any(credit[place]) for place in np.flatnonzero(keep))
