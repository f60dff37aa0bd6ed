"""The part of a step that uses a value model, or a user's critic function: values, their targets, and updates.

The `fill_` functions return the groups unchanged where nothing of their kind is configured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from winnow.algos.gae import check_values, trainable, value_targets, with_kl
from winnow.algos.objective import ValueLoss
from winnow.errors import UpdateError
from winnow.learner.per_token import PerSequence
from winnow.learner.schedule import schedule
from winnow.records import Batch, BoolArray, FloatArray, Group, TrainingSequence
from winnow.training.build import Run
from winnow.training.critic_metrics import describe_kl, describe_values
from winnow.training.critic_tally import CriticTally, Metrics


def fill_token_rewards(run: Run, groups: Sequence[Group]) -> list[Group]:
    """The groups with rewards per token, reduced by `advantage.kl_reward` times the distance from the reference.

    The policy's log-probs in this distance are the engine's, under which the tokens were sampled. Recomputing them
    would cost another pass.
    """
    coefficient = run.config.advantage.kl_reward
    if not coefficient:
        return list(groups)
    reference = run.learner.reference_logprobs(_sequences(groups, [_read(run, group) for group in groups]))
    return [_with_kl(group, position, reference, coefficient) for position, group in enumerate(groups)]


def fill_values(run: Run, groups: Sequence[Group]) -> list[Group]:
    """The groups with values: the return expected before each token, by the weights before this step's updates.

    Raises UpdateError where values of a trained value model are not finite, ConfigError for those of a user's function.
    """
    if run.members.critic is not None:
        of_groups = check_values(run.members.critic(groups), groups)
        return [group.fill(values=values) for group, values in zip(groups, of_groups, strict=True)]
    if run.config.critic is None:
        return list(groups)
    model = run.learner if run.critic is None else run.critic  # a shared value head is part of the learner
    by_rollout = model.values(_sequences(groups, [_read(run, group) for group in groups]))
    if not all(np.isfinite(values).all() for values in by_rollout.values()):
        raise UpdateError(
            "the value model returns values that are not finite",
            remedy="lower its learning rate (critic.optimizer, or optimizer of the shared form), look for rewards of "
            "extreme size, and resume from an earlier checkpoint",
            key="critic.optimizer.learning_rate",
            code="update.not_finite",
        )
    return [group.fill(values=_of_group(group, position, by_rollout)) for position, group in enumerate(groups)]


def fill_returns(run: Run, groups: Sequence[Group], step: int) -> list[Group]:
    """The groups with returns, the targets of the value model (lambda-returns with `critic.gamma` and `critic.lam`).

    In pretraining they are Monte-Carlo returns (VC-PPO: Yuan et al. 2025, arXiv 2503.01491; VAPO: arXiv 2504.05118,
    section 4.1).
    """
    critic = run.config.critic
    if critic is None:
        return list(groups)
    lam = 1.0 if is_pretraining(run, step) else critic.lam  # 1: Monte-Carlo, without the values of an untrained model
    return [group.fill(returns=value_targets(group, gamma=critic.gamma, lam=lam)) for group in groups]


def is_pretraining(run: Run, step: int) -> bool:
    """Whether this step updates only the value model (`critic.pretraining_steps`)."""
    return run.config.critic is not None and step < run.config.critic.pretraining_steps


def train_critic(run: Run, groups: Sequence[Group], step: int, *, planned: int) -> CriticTally:
    """Update a separate value model on the returns. `planned` counts the prompts of the plan, as in `schedule`."""
    tally = CriticTally()
    if run.critic is None:
        return tally
    section = run.config.critic
    assert section is not None, "there is no value model without its table"
    loss = ValueLoss(section.clip_range)
    for batch in _batches(run, groups, step, planned):
        for mb in run.critic.micro_batches(batch):
            value = loss.separate_objective(run.critic.forward(mb), mb)
            run.critic.backward(value.total)
            tally.add(value)
        tally.close(run.critic.step() if batch.sequences else run.critic.skip())
    return tally


def values_metrics(run: Run, groups: Sequence[Group]) -> Metrics:
    """The metrics of values and token rewards, from a step's groups."""
    kl = describe_kl(groups, coefficient=run.config.advantage.kl_reward)
    return {**describe_values(groups, gamma=run.members.gamma), **kl}


def _batches(run: Run, groups: Sequence[Group], step: int, planned: int) -> list[Batch]:
    """Batches of every rollout that the value model has read, with the run's weighting over these rollouts."""
    section = run.config.critic
    assert section is not None, "there is no value model without its table"
    read = [dataclasses.replace(group, keep=_read(run, group)) for group in groups]
    return schedule(
        read,
        run.members.weighting,
        epochs=section.epochs,
        updates_per_step=section.updates_per_step,
        max_new_tokens=run.sampling.max_new_tokens,
        planned=planned,
        pass_rates=run.history.planned_pass_rates([group.prompt for group in groups]),
        drop_silent=False,
        seed=(run.seed, "critic", step),
    )


def _read(run: Run, group: Group) -> BoolArray:
    """[N] the rollouts that a value model reads: the kept ones, or with `critic.train_on` = "all" the verified ones.

    Those without a trainable token are left out.
    """
    assert group.keep is not None, "values come after selection"
    every = run.config.critic is not None and run.config.critic.train_on == "all"
    some = np.array([trainable(rollout).any() for rollout in group.rollouts], dtype=np.bool_)
    return (group.valid if every else group.keep) & some


def _sequences(groups: Sequence[Group], read: Sequence[BoolArray]) -> list[TrainingSequence]:
    return [
        TrainingSequence(prompt=group.prompt, rollout=group.rollouts[place], group=position, advantage=0.0, weight=0.0)
        for position, (group, places) in enumerate(zip(groups, read, strict=True))
        for place in np.flatnonzero(places)
    ]


def _of_group(group: Group, position: int, by_rollout: PerSequence) -> tuple[FloatArray, ...]:
    """N x [L] numbers of a group, NaN where a rollout was not read."""
    return tuple(
        by_rollout.get((position, rollout.index), np.full(len(rollout.tokens), np.nan)) for rollout in group.rollouts
    )


def _with_kl(group: Group, position: int, by_rollout: PerSequence, coefficient: float) -> Group:
    reference = _of_group(group, position, by_rollout)
    distances = tuple(r.logprobs - logprobs for r, logprobs in zip(group.rollouts, reference, strict=True))
    return group.fill(token_rewards=with_kl(group, distances, coefficient))
