"""How many rollouts each prompt gets: (what is known about G prompts, a budget of rollouts) -> [G] counts."""

from __future__ import annotations

import numpy as np

from winnow.records import IntArray, PromptStats
from winnow.registry import register


@register("allocator", window=1)
def uniform(stats: PromptStats, budget: int) -> IntArray:
    """The same for every prompt; a remainder goes to the first ones."""
    prompts = len(stats.ids)
    share, rest = divmod(budget, prompts)
    return np.full(prompts, share, dtype=np.int64) + (np.arange(prompts) < rest)
