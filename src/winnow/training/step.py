"""One training step of RLVR, from top to bottom. Each line fills one field; nothing is visited twice.

prompts -> counts -> rollouts -> outcomes -> keep -> (values) -> advantages -> updates -> loss -> step -> sync -> log

In parentheses: with a value model only, which learns before the policy does (PPO).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from winnow.algos.advantage import Credit, check_credits
from winnow.families import AdvantageTraits
from winnow.learner.schedule import schedule
from winnow.options import Bound
from winnow.records import Group, IntArray, Prompt, StepReport
from winnow.seeds import Rng
from winnow.training.build import Run
from winnow.training.collect import collect
from winnow.training.critic_tally import CriticTally
from winnow.training.hand_over import hand_over
from winnow.training.step_metrics import Clock, Tally, describe
from winnow.training.step_values import (
    fill_returns,
    fill_token_rewards,
    fill_values,
    is_pretraining,
    train_critic,
    values_metrics,
)


def train_step(run: Run, step: int) -> StepReport:
    """Sample, score, choose, credit, learn, hand over the weights, and write it down."""
    clock, tally = Clock(run.phases.begin), Tally(run.parity())
    prompts = run.prompts.take(step)  # [G] a pure function of (seed, step)
    counts = run.history.plan(prompts, step)  # [G] written by the allocator, before the step
    groups = sample(run, prompts, counts, step, clock)  # rollouts and outcomes [N] per group
    groups += dynamic_sampling(run, groups, step, clock)
    run.verifiers.check_step(groups)  # too many verdicts failed: stop

    with clock("select"):
        run.history.observe(groups, run.gradient_norms(groups))  # feeds the next plan
        groups = [fill_keep(run, group, step) for group in groups]  # [N] bool

    if run.members.reads_values:
        with clock("values"):
            groups = fill_token_rewards(run, groups)  # N x [L]
            groups = fill_values(run, groups)  # N x [L], under the weights of this step
            groups = fill_returns(run, groups, step)  # N x [L], what values are taught: before any whitening

    with clock("select"):
        groups = fill_advantages(run, groups)  # [N] or N x [L]
        updates = schedule(  # epochs x updates; weights are set, THEN sequences that cannot teach leave
            groups,
            run.members.weighting,
            epochs=run.config.update.epochs,
            updates_per_step=run.config.update.updates_per_step,
            max_new_tokens=run.sampling.max_new_tokens,
            max_trained_tokens=run.config.update.max_trained_tokens,
            planned=len(prompts),
            pass_rates=run.history.planned_pass_rates([group.prompt for group in groups]),
            drop_silent=not run.members.objective.teaches_all,
            seed=(run.seed, "schedule", step),
        )
        if is_pretraining(run, step):
            updates = []  # the policy is held, and so is its learning rate's schedule

    with clock("logprobs"):  # old and reference log-probs: once, before the first update
        updates = run.learner.compute_logprobs(updates, run.members.needs)

    with clock("save"):  # a checkpoint may be written beside all above; what it reads changes below
        run.saving.wait()

    learned = CriticTally()
    if run.critic is not None:  # a value model of its own learns first
        with clock("critic"):
            learned = train_critic(run, groups, step, planned=len(prompts))

    with clock("update"):
        for batch in updates:  # one optimizer step each
            for mb in run.learner.micro_batches(batch):
                out = run.learner.forward(mb, run.members.needs)  # log-probs [T]
                value = run.members.objective(out, mb)  # sum of weight * (importance * loss + terms)
                run.learner.backward(value.total)
                tally.add(value, out, mb)
            tally.close(run.learner.step() if batch.sequences else run.learner.skip())

    try:
        with clock("sync"):
            hand_over(run.learner, run.engine, version=step + 1)
    finally:  # the step has been learned, also where the engine is lost
        clock.gauge.of_engine(run.engine)
        metrics = {**describe(groups, updates, asked=len(prompts)), **tally.metrics(), **clock.metrics()}
        metrics |= {**values_metrics(run, groups), **learned.metrics()}
        metrics |= run.clock.metrics("time/training_hours")
        metrics |= run.alarms.metrics(step, metrics)
        report = run.logbook.write(step, metrics, groups, updates)
        run.written = step
    return report


def sample(run: Run, prompts: Sequence[Prompt], counts: IntArray, step: int, clock: Clock) -> list[Group]:
    """Groups with outcomes, sampled by the weights of this step."""
    seed = (run.seed, "rollout", step)
    engine, verifiers, each, told = run.engine, run.verifiers, counts.tolist(), run.phases.told(int(counts.sum()))
    return collect(engine, verifiers, prompts, each, run.sampling, seed=seed, phase=clock, version=step, told=told)


def dynamic_sampling(run: Run, groups: Sequence[Group], step: int, clock: Clock) -> list[Group]:
    """More groups while fewer carry a signal than were asked for, for at most `dynamic_sampling_rounds` rounds.

    DAPO's dynamic sampling (Yu et al. 2025, arXiv 2503.14476, section 3.2), bounded: it always returns, everything that
    carries a signal is trained on, also above the number asked for, and nothing is kept for later. A prompt that was
    planned no rollouts is not asked for.
    """
    rollout, added = run.config.rollout, list[Group]()
    asked, carrying, newest = sum(bool(group.rollouts) for group in groups), 0, groups
    for number in range(1, rollout.dynamic_sampling_rounds + 1):
        with clock("select"):
            carrying += sum(bool(np.any(fill_keep(run, group, step).keep)) for group in newest)
        prompts = run.prompts.take(step, extra=number)
        if carrying >= asked or not prompts:
            break
        counts = np.full(len(prompts), rollout.rollouts_per_prompt)
        newest = sample(run, prompts, counts, step, clock)
        added += newest
    return added


def fill_keep(run: Run, group: Group, step: int) -> Group:
    """Failed rollouts are hidden from the selector and never kept; nor is a group that dynamic sampling replaces."""
    nothing, valid = np.zeros(len(group.rollouts), dtype=np.bool_), group.valid
    keep = nothing.copy()
    if valid.any():
        keep[valid] = run.members.select(group.take(valid), Rng((run.seed, "select", step)))
    kept, replaces = group.fill(keep=keep), run.config.rollout.dynamic_sampling_rounds > 0
    return kept if not replaces or carries_signal(kept, run.members.advantage) else group.fill(keep=nothing)


def carries_signal(group: Group, advantage: Bound[AdvantageTraits]) -> bool:
    """Whether the kept rollouts of a group can teach: some of them have credit.

    The credit is that of the group alone, so it depends on what the selector kept and on chunks. Where the credit
    depends on more than the group, the kept rollouts decide. Under values or rewards per token, which are filled later,
    any of them is enough; under a baseline over the batch, any whose reward is not 0.
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


def fill_advantages(run: Run, groups: Sequence[Group]) -> list[Group]:
    """Failed rollouts are hidden from the baseline and get 0. Raises ConfigError for what is no advantage."""
    verified = [group.take(group.valid) for group in groups]
    credits = check_credits(run.members.advantage(verified), verified)
    return [group.fill(advantages=scatter(group, credit)) for group, credit in zip(groups, credits, strict=True)]


def scatter(group: Group, credit: Credit) -> Credit:
    """Credit of the valid rollouts -> of all of them."""
    places = np.flatnonzero(group.valid)
    if isinstance(credit, np.ndarray):
        advantages = np.zeros(len(group.rollouts), dtype=np.float64)
        advantages[places] = credit
        return advantages
    per_token = [np.zeros(length, dtype=np.float64) for length in group.lengths]
    for place, numbers in zip(places, credit, strict=True):
        per_token[place] = numbers
    return tuple(per_token)
