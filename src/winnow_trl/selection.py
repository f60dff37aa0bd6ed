"""Selection and advantages for rows as TRL keeps them: G prompts of one process, n consecutive rows each.

Imports neither TRL nor torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from winnow.algos.advantage import dr_grpo, grpo
from winnow.algos.plain_groups import prompt_id
from winnow.algos.selectors import Selector, keep_verified
from winnow.errors import ConfigError
from winnow.records import BoolArray, FloatArray, Group, IntArray
from winnow.seeds import Rng

EPS = 1e-4  # what TRL adds to a deviation
Scale = Literal["group", "batch", "none"]  # TRL's scale_rewards


def row_id(row: Mapping[str, Any]) -> str:
    """The id of a row's prompt, on which the random numbers of a selector depend: its column `id`, else its prompt, and
    of a row without a prompt (an environment's) all its columns.

    It is the same on every process and in every run.
    """
    own = row.get("id")
    if isinstance(own, (str, int)):
        return str(own)
    return prompt_id(row.get("prompt", row))


def fill_keep(groups: Sequence[Group], select: Selector, rng: Rng, *, most: int) -> list[Group]:
    """The groups with `keep` [N]. The selector gets the rollouts with a reward only, as in a step of winnow.

    Raises ConfigError if a selector keeps more than `most` rollouts of a prompt.
    """
    filled = []
    for group in groups:
        keep = keep_verified(select, group, rng)
        if keep.sum() > most:
            raise ConfigError(
                f"the selector keeps {keep.sum()} of {len(keep)} rollouts of a prompt, and TRL trains on {most}",
                remedy=f"set num_generations to the most that it may keep, or put a selector of {most} after it",
                key="select",
                code="config.combination",
            )
        filled.append(group.fill(keep=keep))
    return filled


def trained_rows(groups: Sequence[Group], *, count: int) -> tuple[IntArray, BoolArray]:
    """([G * count] rows of this process, [G * count] whether each is kept): the kept rows of each prompt, in order.

    TRL needs `count` rows of every prompt. Where fewer are kept, the first others take the free places; their tokens
    have to be masked.
    """
    rows, kept, first = list[int](), list[bool](), 0
    for group in groups:
        keep = np.asarray(group.keep)
        free = np.flatnonzero(~keep)[: count - int(keep.sum())]
        places = np.sort(np.concatenate([np.flatnonzero(keep), free]))
        rows += (first + places).tolist()
        kept += keep[places].tolist()
        first += len(keep)
    return np.array(rows, dtype=np.int64), np.array(kept, dtype=np.bool_)


def advantages(groups: Sequence[Group], scale: Scale, *, of_all: Sequence[float]) -> FloatArray:
    """[G * n] advantages over the kept rollouts of each prompt, 0 for the others.

    "group" is winnow's `grpo`, and "none" its `dr_grpo`. "batch" divides the latter by the deviation (ddof 1) of
    `of_all`, the kept rewards of all processes, as TRL does.
    """
    if scale == "group":
        return np.concatenate(grpo(groups, eps=EPS))
    centred = np.concatenate(dr_grpo(groups))
    deviation = float(np.std(of_all, ddof=1)) if len(of_all) > 1 else 0.0
    return centred if scale == "none" else centred / (deviation + EPS)


def kept_rewards(groups: Sequence[Group]) -> list[float]:
    """The rewards of all kept rollouts."""
    return [reward for group in groups for reward in group.rewards[np.asarray(group.keep)].tolist()]


def kept_variances(groups: Sequence[Group]) -> list[float]:
    """The variance (ddof 0) of the kept rewards of each prompt with a kept rollout."""
    kept = [group.rewards[np.asarray(group.keep)] for group in groups]
    return [float(np.var(rewards)) for rewards in kept if len(rewards)]
