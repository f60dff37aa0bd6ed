"""What a step asks of a value model, winnow's own or a user's function: values, what they are taught, and updates.

Without one every line here leaves the groups as they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from winnow.algos.gae import check_values, trainable, value_targets, with_kl
from winnow.algos.objective import ValueLoss
from winnow.errors import UpdateError
from winnow.learner.per_token import Found
from winnow.learner.schedule import schedule
from winnow.records import Batch, BoolArray, FloatArray, Group, TrainingSequence
from winnow.training.build import Run
from winnow.training.critic_metrics import describe_kl, describe_values
from winnow.training.critic_tally import CriticTally, Metrics


def fill_token_rewards(run: Run, groups: Sequence[Group]) -> list[Group]:
    """The reward of each token, less its distance from the reference, where `advantage.kl_reward` asks for it.

    Of the policy's two log-probs it is the engine's: those that the tokens were sampled under.
    """
    coefficient = run.config.advantage.kl_reward
    if not coefficient:
        return list(groups)
    found = run.learner.reference_logprobs(_sequences(groups, [_read(run, group) for group in groups]))
    return [_with_kl(group, position, found, coefficient) for position, group in enumerate(groups)]


def fill_values(run: Run, groups: Sequence[Group]) -> list[Group]:
    """What is expected before each token is sampled, by the weights before this step's updates."""
    if run.members.critic is not None:
        said = check_values(run.members.critic(groups), groups)
        return [group.fill(values=values) for group, values in zip(groups, said, strict=True)]
    if run.config.critic is None:
        return list(groups)
    reader = run.learner if run.critic is None else run.critic
    found = reader.values(_sequences(groups, [_read(run, group) for group in groups]))
    if not all(np.isfinite(values).all() for values in found.values()):
        raise UpdateError(
            "the value model returns values that are not finite",
            remedy="lower its learning rate (critic.optimizer, or optimizer of the shared form), look for rewards of "
            "extreme size, and resume from an earlier checkpoint",
            key="critic.optimizer.learning_rate",
            code="update.not_finite",
        )
    return [group.fill(values=_of_group(group, position, found)) for position, group in enumerate(groups)]


def fill_returns(run: Run, groups: Sequence[Group], step: int) -> list[Group]:
    """What the values are taught; in pretraining Monte-Carlo returns (VC-PPO: Yuan et al. 2025, arXiv 2503.01491;
    VAPO: arXiv 2504.05118, section 4.1)."""
    critic = run.config.critic
    if critic is None:
        return list(groups)
    lam = 1.0 if is_pretraining(run, step) else critic.lam
    return [group.fill(returns=value_targets(group, gamma=critic.gamma, lam=lam)) for group in groups]


def is_pretraining(run: Run, step: int) -> bool:
    """Whether the policy is held in this step, and its value model alone learns."""
    return run.config.critic is not None and step < run.config.critic.pretraining_steps


def train_critic(run: Run, groups: Sequence[Group], step: int, *, planned: int) -> CriticTally:
    """The updates of a value model of its own, from what its values are taught; `planned` is that of `schedule`."""
    tally = CriticTally()
    if run.critic is None:
        return tally
    section = run.config.critic
    assert section is not None, "there is no value model without its table"
    loss = ValueLoss(section.clip_range)
    for batch in _batches(run, groups, step, planned):
        for mb in run.critic.micro_batches(batch):
            value = loss.of_own_model(run.critic.forward(mb), mb)
            run.critic.backward(value.total)
            tally.add(value)
        tally.close(run.critic.step() if batch.sequences else run.critic.skip())
    return tally


def values_metrics(run: Run, groups: Sequence[Group]) -> Metrics:
    """What the groups say of values and token rewards."""
    kl = describe_kl(groups, coefficient=run.config.advantage.kl_reward)
    return {**describe_values(groups, gamma=run.members.gamma), **kl}


def _batches(run: Run, groups: Sequence[Group], step: int, planned: int) -> list[Batch]:
    """Of every rollout that it has read, each as the weighting weighs it among those."""
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
    """[N] which rollouts a value model reads: those that were kept, or all that were verified."""
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


def _of_group(group: Group, position: int, found: Found) -> tuple[FloatArray, ...]:
    """N x [L], NaN where a rollout was not read."""
    return tuple(
        found.get((position, rollout.index), np.full(len(rollout.tokens), np.nan)) for rollout in group.rollouts
    )


def _with_kl(group: Group, position: int, found: Found, coefficient: float) -> Group:
    reference = _of_group(group, position, found)
    distances = tuple(r.logprobs - said for r, said in zip(group.rollouts, reference, strict=True))
    return group.fill(token_rewards=with_kl(group, distances, coefficient))
