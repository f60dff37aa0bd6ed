"""The rollouts of a step: sampled now or one step ahead, in rounds, and with further prompts for groups without a
signal. A `StepRequest` is handed on from the step to the engine.

With `rollout.ahead = 1` the engine samples the next step's rollouts while the policy is trained on this step's. The
order of a step k, on every rank:

    take(k)        the groups of step k, complete since the step before; observe(k)
    begin(k + 1)   plan k + 1 from the results up to k; a thread then samples and judges it, without exchanges
    ...            train on k
    finish(k + 1)  wait for the thread, gather the ranks' groups; then the engine gets the weights after k

So the weights of version k sample step k + 1, regardless of which side takes longer. At a boundary between two steps
nothing is under way: an evaluation may use the engine, and a checkpoint contains the next step's groups whole.

The thread calls the engine and the verifiers only. On one rank it also calls the rule of rounds and, for dynamic
sampling, the selectors. With `rollout.ahead = 0`, `take` samples, and the other two do nothing.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np

from winnow import ranks
from winnow.budget.rounds import Counts
from winnow.core.collect import OnRollout, Phase, RankShare, Request, collect, collect_share, gather_share
from winnow.core.cuts import make_cut
from winnow.core.metrics import completion_tokens
from winnow.core.plan import plan
from winnow.core.progress import Ahead
from winnow.core.run import Progress, Run
from winnow.core.select import fill_keep
from winnow.core.tally import Clock
from winnow.engines.freshness import check_fresh, sampling_version
from winnow.records import Group, IntArray, Metrics, Prompt
from winnow.state.history import History
from winnow.state.pending import PendingGroups
from winnow.user_code import Requested


@dataclass(frozen=True)
class StepRequest:
    """What a step samples, and the parts of its run that sample it."""

    run: Run
    step: int
    prompts: Sequence[Prompt]  # [G]
    counts: IntArray  # [G] the maximum number of rollouts of each
    history: History  # with the step's draw
    counter: Callable[[int], OnRollout]  # for a number of rollouts, what is called with each that finishes
    phase: Phase  # times what is done

    def round(self, counts: IntArray, *, number: int = 0, spent: int = 0) -> Request:
        """The request of one round, with the weights that `rollout.ahead` names.

        `spent` is the number of tokens of the step's rounds before it.
        """
        run, step = self.run, self.step
        return Request(
            self.prompts,
            counts.tolist(),
            run.sampling,
            # With the step: a prompt that returns gets other random numbers, and so does every later round
            seed=(run.seed, "rollout", step, *(("round", number) if number else ())),
            version=sampling_version(step, run.config.rollout.ahead),
            on_rollout=self.counter(int(counts.sum())),
            cut=make_cut(run.members.cut, spent=spent),
        )


def take(request: StepRequest, ahead: Ahead) -> list[Group]:
    """The judged groups of a step, those of dynamic sampling last: sampled one step ahead, or now. The groups of the
    plan have the probabilities of their draw, if the sampler returns them.

    Raises EngineError for a rollout of other weights than those that the configuration names.
    """
    pending, ahead.pending = ahead.pending, None
    if pending is None or pending.step != request.step:
        groups = sample(request)
    else:
        check_fresh(pending.groups, sampling_version(request.step, request.run.config.rollout.ahead))
        groups = list(pending.groups)
    draws = request.history.draws(request.step) or []
    return [*(group.fill(drawn=draw) for group, draw in zip(groups, draws, strict=False)), *groups[len(draws) :]]


def begin(run: Run, progress: Progress, step: int) -> None:
    """Plan a step and start its rollouts, with `rollout.ahead = 1` and if the run has this step."""
    if not run.config.rollout.ahead or step >= run.config.steps:
        return
    plan(run, progress, step)
    # The thread reads the history as it is now, and reports nothing: events are of the step that is trained
    planned = progress.history.snapshot()
    prompts = run.prompts.take(planned.drawn(step))
    counts = planned.plan(prompts, step)
    request = StepRequest(run, step, prompts, counts, planned, lambda total: progress.ahead.check, nullcontext)

    def sample_ahead() -> tuple[int, RankShare, float]:
        """The step, its share, and the seconds to the last verdict."""
        started = time.perf_counter()
        if ranks.count() > 1:  # one round, which needs no exchange
            share = collect_share(run.engine, run.verifiers, request.round(request.counts))
        else:
            share = RankShare((), sample(request))
        return step, share, time.perf_counter() - started

    progress.ahead.begin(sample_ahead)


def finish(run: Run, progress: Progress, clock: Clock) -> Metrics:
    """Wait until the rollouts that `begin` started are judged, and gather them; returns metrics, none without any.

    Raises what the thread raised, on every rank.
    """
    if not progress.ahead.under_way:
        return {}
    with clock("wait"), ranks.together("sampling one step ahead"):
        step, share, seconds = progress.ahead.wait()
    prompts = run.prompts.take(progress.history.drawn(step))
    groups = gather_share(prompts, share, clock)
    progress.ahead.pending = PendingGroups(step, tuple(groups))
    return {"ahead/seconds_sampling": seconds}


def sample(request: StepRequest) -> list[Group]:
    """The judged groups of the plan, then those that dynamic sampling adds."""
    groups = sample_in_rounds(request)
    return groups + dynamic_sampling(request, groups)


def dynamic_sampling(request: StepRequest, groups: Sequence[Group]) -> list[Group]:
    """Further groups, sampled until as many carry a signal as were planned, the prompts are used up, or
    `dynamic_sampling_rounds` are done.

    DAPO's dynamic sampling (Yu et al. 2025, arXiv 2503.14476, section 3.2) with a bound, so it always returns. All
    groups with a signal are trained on, even above the planned number, and none is stored for later steps. A prompt
    with a planned count of 0 is not replaced.
    """
    run, step = request.run, request.step
    rollout, added = run.config.rollout, list[Group]()
    planned, carrying, newest = sum(bool(group.rollouts) for group in groups), 0, groups
    for number in range(1, rollout.dynamic_sampling_rounds + 1):
        with request.phase("select"):
            carrying += sum(bool(np.any(fill_keep(run.members, group, step).keep)) for group in newest)
        prompts = run.prompts.take(request.history.drawn(step, extra=number))
        if carrying >= planned or not prompts:
            break
        counts = np.full(len(prompts), rollout.rollouts_per_prompt)
        further = dataclasses.replace(request, prompts=prompts, counts=counts)
        newest = sample_in_rounds(further, spent=int(completion_tokens([*groups, *added])))
        added += newest
    return added


def sample_in_rounds(request: StepRequest, *, spent: int = 0) -> list[Group]:
    """[G] judged groups of at most the requested rollouts each, sampled round after round until the rule `rounds` ends
    all prompts: after each round it decides which prompts get further rollouts.

    The rollouts of a prompt are numbered through its rounds, and each round has random numbers of its own. All rounds
    sample with the same weights. `spent` is the number of tokens that the step has sampled before.
    """
    run = request.run
    groups = [Group(prompt=prompt, rollouts=(), outcomes=()) for prompt in request.prompts]
    number = 0
    while (more := _next_counts(run, groups, request.counts)).any():
        one_round = request.round(more, number=number, spent=spent + int(completion_tokens(groups)))
        added = collect(run.engine, run.verifiers, one_round, request.phase)
        groups = [_with_next_round(group, further, number) for group, further in zip(groups, added, strict=True)]
        number += 1
    return groups


def _next_counts(run: Run, groups: Sequence[Group], planned: IntArray) -> IntArray:
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


def _with_next_round(group: Group, further: Group, number: int) -> Group:
    start = len(group.rollouts)
    if number == 0:
        return further
    numbered = tuple(
        dataclasses.replace(rollout, index=start + rollout.index, round=number) for rollout in further.rollouts
    )
    outcomes = (*(group.outcomes or ()), *(further.outcomes or ()))
    return Group(prompt=group.prompt, rollouts=(*group.rollouts, *numbered), outcomes=outcomes)


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
