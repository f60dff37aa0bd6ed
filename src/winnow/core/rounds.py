"""Sampling a step in rounds: the rule `rounds` decides after each round which prompts get further rollouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from winnow import ranks
from winnow.budget.rounds import Counts
from winnow.core.collect import Phase, sample
from winnow.core.metrics import completion_tokens
from winnow.core.run import Progress, Run
from winnow.records import Group, IntArray, Metrics, Prompt
from winnow.user_code import Requested


def sample_in_rounds(
    run: Run,
    progress: Progress,
    prompts: Sequence[Prompt],
    counts: IntArray,
    step: int,
    phase: Phase,
    *,
    spent: int = 0,
) -> list[Group]:
    """[G] judged groups of at most `counts` rollouts each, sampled round after round until the rule ends all prompts.

    The rollouts of a prompt are numbered through its rounds, and each round has random numbers of its own. All rounds
    sample with the same weights. `spent` is the number of tokens that the step has sampled before.
    """
    groups = [Group(prompt=prompt, rollouts=(), outcomes=()) for prompt in prompts]
    number = 0
    while (more := _further(run, groups, counts)).any():
        so_far = spent + int(completion_tokens(groups))
        added = sample(run, progress, prompts, more, step, phase, number=number, spent=so_far)
        groups = [_joined(group, further, number) for group, further in zip(groups, added, strict=True)]
        number += 1
    return groups


def check_more(answer: object, seen: Counts) -> IntArray:
    """[G] int64 further rollouts from the result of a rule. Raises ConfigError unless each prompt stays in its plan."""
    left = seen.planned - seen.sampled

    def fault(more: IntArray) -> str | None:
        within = np.all((more >= 0) & (more <= left))
        return None if within else f"{more.tolist()} further rollouts where {left.tolist()} are left"

    requested = Requested(
        "the rule of rounds",
        f"{len(left)} prompts",
        "return one integer per prompt, at least 0 and at most planned - sampled",
        "rounds",
    )
    return requested.integers(answer, len(left), fault)


def rounds_metrics(run: Run, counts: IntArray, groups: Sequence[Group]) -> Metrics:
    """What the rule saved of the plan `counts`; empty for a rule that samples everything in one round."""
    if not run.members.rounds.traits.reads_verdicts:
        return {}
    of_plan = groups[: len(counts)]
    saved = counts - np.array([len(group.rollouts) for group in of_plan], dtype=np.int64)
    pilot = float(sum(rollout.length for group in of_plan for rollout in group.rollouts if rollout.round == 0))
    return {
        "rounds/ended_early": float(np.sum(saved > 0)),
        "rounds/rollouts_saved": float(saved.sum()),
        "rounds/pilot_tokens": pilot,
        "rounds/further_tokens": completion_tokens(of_plan) - pilot,
    }


def _further(run: Run, groups: Sequence[Group], planned: IntArray) -> IntArray:
    """[G] rollouts of the next round."""
    sampled = np.array([len(group.rollouts) for group in groups], dtype=np.int64)
    if np.array_equal(sampled, planned):  # no rule has anything left to decide
        return np.zeros_like(planned)
    valid = np.array([np.count_nonzero(group.valid) for group in groups], dtype=np.int64)
    correct = np.array([np.count_nonzero(group.correct) for group in groups], dtype=np.int64)
    seen = Counts(planned=planned, sampled=sampled, correct=correct, wrong=valid - correct)
    more = check_more(run.members.rounds(seen), seen)
    ranks.check_same("number of further rollouts", lambda: str(more.tolist()), ranks.SAME_RESULTS)
    return more


def _joined(group: Group, further: Group, number: int) -> Group:
    start = len(group.rollouts)
    if number == 0:
        return further
    numbered = tuple(
        dataclasses.replace(rollout, index=start + rollout.index, round=number) for rollout in further.rollouts
    )
    outcomes = (*(group.outcomes or ()), *(further.outcomes or ()))
    return Group(prompt=group.prompt, rollouts=(*group.rollouts, *numbered), outcomes=outcomes)
