"""`rollout.ahead = 1`: the engine samples the next step's rollouts while the policy is trained on this step's.

The order of a step k, on every rank:

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
from threading import Event

from winnow import ranks
from winnow.core.collect import Phase, RankShare, gather_share, sample_share
from winnow.core.dynamic_sampling import dynamic_sampling
from winnow.core.plan import plan
from winnow.core.progress import Phases
from winnow.core.rounds import sample_in_rounds
from winnow.core.run import Progress, Run
from winnow.core.tally import Clock
from winnow.engines.freshness import check_fresh, sampling_version
from winnow.errors import EngineError
from winnow.records import Group, IntArray, Metrics, Prompt, Rollout
from winnow.state.pending import PendingGroups


def take(
    run: Run, progress: Progress, prompts: Sequence[Prompt], counts: IntArray, step: int, clock: Clock
) -> list[Group]:
    """The judged groups of a step, those of dynamic sampling last: sampled one step ahead, or now. The groups of the
    plan have the probabilities of their draw, where the sampler knows them.

    Raises EngineError for a rollout of other weights than those that the configuration names.
    """
    pending, progress.ahead.pending = progress.ahead.pending, None
    if pending is None or pending.step != step:
        groups = _sample(run, progress, prompts, counts, step, clock)
    else:
        check_fresh(pending.groups, sampling_version(step, run.config.rollout.ahead))
        groups = list(pending.groups)
    draws = progress.history.draws(step) or []
    return [*(group.fill(drawn=draw) for group, draw in zip(groups, draws, strict=False)), *groups[len(draws) :]]


def begin(run: Run, progress: Progress, step: int) -> None:
    """Plan a step and start its rollouts, with `rollout.ahead = 1` and if the run has this step."""
    if not run.config.rollout.ahead or step >= run.config.steps:
        return
    plan(run, progress, step)
    prompts = run.prompts.take(progress.history.drawn(step))
    counts = progress.history.plan(prompts, step)
    # The thread reads the history as it is now, and reports nothing: events are of the step that is trained
    beside = dataclasses.replace(
        progress, history=progress.history.snapshot(), phases=Unwatched(stopped=progress.ahead.stopped)
    )

    def sample() -> SampledAhead:
        started = time.perf_counter()
        if ranks.count() > 1:  # one round, which needs no exchange
            share = sample_share(run, beside, prompts, counts, step, nullcontext)
        else:
            share = RankShare((), _sample(run, beside, prompts, counts, step, nullcontext))
        return SampledAhead(step, share, time.perf_counter() - started)

    progress.ahead.begin(sample)


def finish(run: Run, progress: Progress, clock: Clock) -> Metrics:
    """Wait until the rollouts that `begin` started are judged, and gather them; returns metrics, none without any.

    Raises what the thread raised, on every rank.
    """
    if not progress.ahead.under_way:
        return {}
    with clock("wait"), ranks.together("sampling one step ahead"):
        sampled: SampledAhead = progress.ahead.wait()
    prompts = run.prompts.take(progress.history.drawn(sampled.step))
    groups = gather_share(prompts, sampled.share, clock)
    progress.ahead.pending = PendingGroups(sampled.step, tuple(groups))
    return {"ahead/seconds_sampling": sampled.seconds}


@dataclass(frozen=True)
class SampledAhead:
    """The result of the thread."""

    step: int
    share: RankShare
    seconds: float  # from its start to the last verdict


@dataclass
class Unwatched(Phases):
    """Phases without events. Once `stopped` is set, the next finished rollout ends the sampling."""

    stopped: Event = dataclasses.field(default_factory=Event)

    def rollout_counter(self, total: int) -> Callable[[Rollout], None]:
        def check(rollout: Rollout) -> None:
            if self.stopped.is_set():
                raise EngineError("the run ends while the next step is sampled", code="engine.failed")

        return check


def _sample(
    run: Run, progress: Progress, prompts: Sequence[Prompt], counts: IntArray, step: int, phase: Phase
) -> list[Group]:
    groups = sample_in_rounds(run, progress, prompts, counts, step, phase)
    return groups + dynamic_sampling(run, progress, groups, step, phase)
