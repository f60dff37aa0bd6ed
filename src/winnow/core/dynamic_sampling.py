"""Dynamic sampling: further prompts in the place of groups that do not contribute to the gradient, as in DAPO."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from winnow.core.collect import Phase
from winnow.core.metrics import completion_tokens
from winnow.core.rounds import sample_in_rounds
from winnow.core.run import Progress, Run
from winnow.core.select import fill_keep
from winnow.records import Group


def dynamic_sampling(run: Run, progress: Progress, groups: Sequence[Group], step: int, phase: Phase) -> list[Group]:
    """Further groups, sampled until as many carry a signal as were planned, the prompts are used up, or
    `dynamic_sampling_rounds` are done.

    DAPO's dynamic sampling (Yu et al. 2025, arXiv 2503.14476, section 3.2) with a bound, so it always returns. All
    groups with a signal are trained on, even above the planned number, and none is stored for later steps. A prompt
    with a planned count of 0 is not replaced.
    """
    rollout, added = run.config.rollout, list[Group]()
    planned, carrying, newest = sum(bool(group.rollouts) for group in groups), 0, groups
    for number in range(1, rollout.dynamic_sampling_rounds + 1):
        with phase("select"):
            carrying += sum(bool(np.any(fill_keep(run.members, group, step).keep)) for group in newest)
        prompts = run.prompts.take(progress.history.drawn(step, extra=number))
        if carrying >= planned or not prompts:
            break
        counts = np.full(len(prompts), rollout.rollouts_per_prompt)
        spent = int(completion_tokens([*groups, *added]))
        newest = sample_in_rounds(run, progress, prompts, counts, step, phase, spent=spent)
        added += newest
    return added
