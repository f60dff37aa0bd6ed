"""One training step of RLVR: a single walk down the corridor. Each line fills one field; nothing is visited twice.

    prompts -> counts -> rollouts -> outcomes -> keep -> advantages -> updates -> loss -> step -> sync -> log
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from winnow.build import Run
from winnow.errors import EngineError
from winnow.learner.schedule import schedule
from winnow.measure import Clock, Tally, describe
from winnow.records import FloatArray, Group, StepReport
from winnow.seeds import Rng


def train_step(run: Run, step: int) -> StepReport:
    """Sample, score, choose, credit, learn, hand over the weights, and write it down."""
    clock, tally = Clock(), Tally()

    with clock("generate"):  # verdicts are already being reached while later rollouts are sampled
        prompts = run.prompts.take(step)  # [G] a pure function of (seed, step)
        counts = run.history.plan(prompts, step)  # [G] written by the allocator
        groups = run.engine.generate(
            prompts, counts.tolist(), run.sampling, seed=(run.seed, "rollout", step), on_rollout=run.verifiers.submit
        )
        check_fresh(groups, step)

    with clock("verify"):
        groups = run.verifiers.collect(groups)  # outcomes [N] per group

    with clock("select"):
        run.history.observe(groups, step)  # feeds the next plan
        groups = [fill_keep(run, group, step) for group in groups]  # [N] bool
        groups = fill_advantages(run, groups)  # [N] or N x [L]
        updates = schedule(  # epochs x updates; weights are set, THEN rows that cannot teach leave
            groups,
            run.weighting,
            epochs=run.update.epochs,
            updates_per_step=run.update.updates_per_step,
            max_new_tokens=run.sampling.max_new_tokens,
            pass_rates=run.history.planned_pass_rates(prompts, step),
            seed=(run.seed, "schedule", step),
        )

    with clock("annotate"):
        updates = run.policy.annotate(updates, run.needs)  # old log-probs: once, before the first optimizer step

    with clock("update"):
        for batch in updates:  # one optimizer step each
            for mb in run.policy.micro_batches(batch):
                out = run.policy.forward(mb, run.needs)  # log-probs [T]
                value = run.objective(out, mb)  # sum of weight * importance * loss
                run.policy.backward(value.total)
                tally.add(value, out, mb)
            tally.close(run.optimizer.step() if batch.rows else run.optimizer.skip())

    with clock("sync"):
        run.engine.load(run.policy.weights(), version=step + 1)

    metrics = {**describe(groups, updates), **tally.metrics(), **clock.metrics()}
    return run.logbook.write(step, metrics, groups, updates)


def fill_keep(run: Run, group: Group, step: int) -> Group:
    """Failed rollouts are hidden from the selector and never kept."""
    keep = np.zeros(len(group.rollouts), dtype=np.bool_)
    valid = group.valid
    if valid.any():
        keep[valid] = run.select(group.take(valid), Rng((run.seed, "select", step)))
    return group.fill(keep=keep)


def fill_advantages(run: Run, groups: Sequence[Group]) -> list[Group]:
    """Failed rollouts are hidden from the baseline and get 0."""
    credits = run.advantage([group.take(group.valid) for group in groups])
    return [group.fill(advantages=scatter(group, credit)) for group, credit in zip(groups, credits, strict=True)]


def scatter(group: Group, credit: FloatArray | Sequence[FloatArray]) -> FloatArray | tuple[FloatArray, ...]:
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


def check_fresh(groups: Sequence[Group], step: int) -> None:
    """Rollouts of other weights than this step's would be trained with wrong ratios."""
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        if rollout.version != step:
            raise EngineError(f"step {step} got a rollout sampled by the weights of version {rollout.version}")
