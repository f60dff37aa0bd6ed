"""Sampling a step in rounds: the rule `rounds` decides after each round which prompts get further rollouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from winnow import ranks
from winnow.budget.rounds import Counts
from winnow.errors import ConfigError
from winnow.records import Group, IntArray, Prompt, as_array
from winnow.training.collect import Phase, sample
from winnow.training.metrics import Metrics
from winnow.training.run import Progress, Run


def sample_in_rounds(
    run: Run, progress: Progress, prompts: Sequence[Prompt], counts: IntArray, step: int, phase: Phase
) -> list[Group]:
    """[G] judged groups of at most `counts` rollouts each, sampled round after round until the rule ends all prompts.

    The rollouts of a prompt are numbered through its rounds, and each round has random numbers of its own. All rounds
    sample with the same weights.
    """
    groups = [Group(prompt=prompt, rollouts=(), outcomes=()) for prompt in prompts]
    number = 0
    while (more := _further(run, groups, counts)).any():
        added = sample(run, progress, prompts, more, step, phase, number=number)
        groups = [_joined(group, further) for group, further in zip(groups, added, strict=True)]
        number += 1
    return groups


def check_more(answer: object, seen: Counts) -> IntArray:
    """[G] int64 further rollouts from the result of a rule. Raises ConfigError unless each prompt stays in its plan."""
    more = as_array(answer)
    if more.shape == seen.planned.shape and np.issubdtype(more.dtype, np.integer):
        if np.all((more >= 0) & (more <= seen.planned - seen.sampled)):
            return more.astype(np.int64)
        returned = f"{more.tolist()} further rollouts where {(seen.planned - seen.sampled).tolist()} are left"
    else:
        returned = f"{more.dtype} of shape {more.shape} for {len(seen.planned)} prompts"
    raise ConfigError(
        f"the rule of rounds returned {returned}",
        remedy="return one integer per prompt, at least 0 and at most planned - sampled",
        key="rounds",
        code="config.member_result",
    )


def rounds_metrics(run: Run, counts: IntArray, groups: Sequence[Group]) -> Metrics:
    """What the rule saved of the plan `counts`; empty for a rule that samples everything in one round."""
    if not run.members.rounds.traits.reads_verdicts:
        return {}
    saved = counts - np.array([len(group.rollouts) for group in groups[: len(counts)]], dtype=np.int64)
    return {"rounds/ended_early": float(np.sum(saved > 0)), "rounds/rollouts_saved": float(saved.sum())}


def _further(run: Run, groups: Sequence[Group], planned: IntArray) -> IntArray:
    """[G] rollouts of the next round."""
    sampled = np.array([len(group.rollouts) for group in groups], dtype=np.int64)
    if np.array_equal(sampled, planned):  # no rule has anything left to decide
        return np.zeros_like(planned)
    valid = np.array([group.valid.sum() for group in groups], dtype=np.int64)
    correct = np.array([group.correct.sum() for group in groups], dtype=np.int64)
    seen = Counts(planned=planned, sampled=sampled, correct=correct, wrong=valid - correct)
    more = check_more(run.members.rounds(seen), seen)
    ranks.check_same("number of further rollouts", lambda: str(more.tolist()), ranks.SAME_RESULTS)
    return more


def _joined(group: Group, further: Group) -> Group:
    start = len(group.rollouts)
    if start == 0:
        return further
    numbered = tuple(dataclasses.replace(rollout, index=start + rollout.index) for rollout in further.rollouts)
    outcomes = (*(group.outcomes or ()), *(further.outcomes or ()))
    return Group(prompt=group.prompt, rollouts=(*group.rollouts, *numbered), outcomes=outcomes)
