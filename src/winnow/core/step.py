"""One training step of RLVR, from top to bottom. Each line fills one field, and no field is filled twice.

prompts -> counts -> rollouts -> outcomes -> keep -> (values) -> advantages -> updates -> loss -> step -> sync -> log

The part in parentheses applies with a value model only (PPO). A separate value model is updated before the policy.
Shapes: G groups in the step, N rollouts in a group (N varies), L tokens in a rollout, T tokens in a micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from winnow.algos.advantage import Credit, check_credits
from winnow.core.batches import make_batches
from winnow.core.collect import sync_weights
from winnow.core.critic import (
    CriticTally,
    fill_returns,
    fill_token_rewards,
    fill_values,
    is_pretraining,
    train_critic,
    values_metrics,
)
from winnow.core.metrics import describe, turn_metrics
from winnow.core.mismatch import Parity
from winnow.core.plan import prompt_gradient_norms
from winnow.core.run import Progress, Run
from winnow.core.sample import StepRequest, begin, finish, rounds_metrics, take
from winnow.core.select import fill_keep
from winnow.core.tally import Clock, Tally
from winnow.families import AdvantageTraits
from winnow.options import Bound
from winnow.records import Group, Metrics, StepReport


def train_step(run: Run, progress: Progress, step: int) -> StepReport:
    """Sample, verify, select, compute advantages, update the policy, sync its weights to the engine, and log.

    Raises WinnowError subclasses. Parameters and moments are unchanged until the first update.
    """
    clock = Clock(progress.phases.begin, run.gauge())
    parity = Parity(run.engine.logprob_tolerance, run.config.rollout.max_ratio_outside)
    tally = Tally(parity, stale=bool(run.config.rollout.ahead))
    planned = progress.history.snapshot()  # this step's plan, which the next one may replace before the update
    prompts = run.prompts.take(planned.drawn(step))  # [G] the sampler ran before the step
    counts = planned.plan(prompts, step)  # [G] rollouts per prompt; the allocator ran before the step
    request = StepRequest(run, step, prompts, counts, planned, progress.phases.rollout_counter, clock)
    groups = take(request, progress.ahead)  # per group: rollouts [N], outcomes [N]
    run.verifiers.check_step(groups)  # raises if too many verdicts failed

    with clock("select"):
        # Before the update: the norms are those of gradients under the weights that the step starts with
        norms = prompt_gradient_norms(run, groups) if run.members.source == "history" else None
        progress.history.observe(groups, norms)  # input of the next plan
        begin(run, progress, step + 1)  # with rollout.ahead = 1: these weights sample the next step from here on
        groups = [fill_keep(run.members, group, step) for group in groups]  # [N] bool

    if run.members.reads_values:
        with clock("values"):
            groups = fill_token_rewards(run, groups)  # N x [L]
            groups = fill_values(run, groups)  # N x [L] predictions before this step's updates
            groups = fill_returns(run.config.critic, groups, step)  # N x [L] targets of the value model, never whitened

    with clock("select"):
        groups = fill_advantages(run.members.advantage, groups)  # [N], or N x [L] where each token has its own
        pass_rates = planned.planned_pass_rates([group.prompt for group in groups])  # [G] NaN: unknown
        # A list of epochs x updates batches. Sequences are weighted before those without a gradient are dropped:
        # the other order would divide by fewer sequences, and so change the weights of the rest.
        updates = make_batches(
            groups,
            run.members.weighting,
            epochs=run.config.update.epochs,
            updates_per_step=run.config.update.updates_per_step,
            max_new_tokens=run.sampling.max_new_tokens,
            max_trained_tokens=run.config.update.max_trained_tokens,
            planned=len(prompts),
            pass_rates=pass_rates,
            drop_silent=not run.members.objective.trains_all,
            seed=(run.seed, "schedule", step),
        )
        if is_pretraining(run.config.critic, step):
            updates = []  # neither the policy nor its learning-rate schedule advances in these steps

    with clock("logprobs"):
        # Before the first update: old log-probs are those of the weights that the step starts with, which sampled its
        # rollouts or, with rollout.ahead = 1, followed the weights that did (the ratio's denominator)
        updates = run.learner.compute_logprobs(updates, run.members.needs)

    with clock("save"), progress.clock.stopped():
        # The last checkpoint may still be written by a thread, which reads the tensors that the updates below change
        progress.saving.wait()

    run.logbook.begin(step, groups, updates)  # a thread writes the rollouts while the policy is updated
    critic_tally = CriticTally()
    if run.critic is not None:  # a separate value model
        with clock("critic"):
            critic_tally = train_critic(run, planned, groups, step, planned=len(prompts))

    with clock("update"):
        for batch in updates:  # one optimizer step each
            for mb in run.learner.micro_batches(batch):
                out = run.learner.forward(mb, run.members.needs)  # log-probs [T]
                objective = run.members.objective(out, mb)  # sum over tokens of weight * (importance * loss + terms)
                # No division by the number of micro-batches: the weights are relative to the whole batch
                run.learner.backward(objective.total)
                tally.add(objective, out, mb)
            # An empty batch still advances the learning-rate schedule
            tally.close(run.learner.step() if batch.sequences else run.learner.skip())

    ahead = Metrics()
    try:
        ahead = finish(run, progress, clock)  # the rollouts of the next step, before the engine gets other weights
        with clock("sync"):
            sync_weights(run.learner, run.engine, version=step + 1)
    finally:  # the policy is updated, so the step is logged (and can be saved) even if the engine failed
        clock.gauge.read_engine(run.engine)
        of_step = describe(groups, updates, planned=len(prompts), pass_rates=pass_rates)
        metrics = {**of_step, **rounds_metrics(run, counts, groups), **tally.metrics(), **clock.metrics()}
        metrics |= {**values_metrics(run.members, groups), **critic_tally.metrics()}
        metrics |= {**turn_metrics(run.members, groups), **run.learner.move_metrics("policy")}
        metrics |= run.critic.move_metrics("critic") if run.critic else {}
        metrics |= {**ahead, **planned.draw_metrics(step), **progress.clock.metrics("time/training_hours")}
        metrics |= progress.alarms.metrics(step, metrics)
        report = run.logbook.finish(step, metrics)
        progress.written = step
    return report


def fill_advantages(advantage: Bound[AdvantageTraits], groups: Sequence[Group]) -> list[Group]:
    """The groups with `advantages`. Failed rollouts are not in the baseline, and their advantage is 0.

    Raises ConfigError if the advantage function returns another shape, or numbers that are not finite.
    """
    verified = [group.take(group.valid) for group in groups]
    credits = check_credits(advantage(verified), verified)
    return [group.fill(advantages=scatter(group, credit)) for group, credit in zip(groups, credits, strict=True)]


def scatter(group: Group, credit: Credit) -> Credit:
    """Advantages of the valid rollouts as advantages of all N rollouts, with 0 for the others."""
    places = np.flatnonzero(group.valid)
    if isinstance(credit, np.ndarray):
        advantages = np.zeros(len(group.rollouts), dtype=np.float64)
        advantages[places] = credit
        return advantages
    per_token = [np.zeros(size, dtype=np.float64) for size in group.sizes]
    for place, numbers in zip(places, credit, strict=True):
        per_token[place] = numbers
    return tuple(per_token)
