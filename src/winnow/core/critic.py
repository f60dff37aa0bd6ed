"""The part of a step that uses a value model, or a user's critic function: values, their targets, updates and metrics.

The `fill_` functions return the groups unchanged where nothing of their kind is configured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from winnow import ranks
from winnow.algos.gae import (
    check_values,
    explained_variance,
    monte_carlo_returns,
    token_rewards,
    value_targets,
    values_of,
    with_kl,
)
from winnow.algos.objective import ValueLoss
from winnow.config import CriticSection, TrainedCritic
from winnow.core.batches import make_batches
from winnow.core.members import Members
from winnow.core.run import Run
from winnow.core.tally import UpdateTally, merged, of_value_loss
from winnow.errors import UpdateError
from winnow.records import BoolArray, FloatArray, Group, Metrics, PerSequence, TrainingSequence, joined
from winnow.state.history import History


def fill_token_rewards(run: Run, groups: Sequence[Group]) -> list[Group]:
    """The groups with rewards per token, reduced by `advantage.kl_reward` times the distance from the reference.

    The policy's log-probs in this distance are the engine's, under which the tokens were sampled. Recomputing them
    would cost another pass.
    """
    coefficient = run.config.advantage.kl_reward
    if not coefficient:
        return list(groups)
    reference = run.learner.reference_logprobs(_sequences(groups, [_read(run, group) for group in groups]))
    filled = []
    for position, group in enumerate(groups):
        of_group = _of_group(group, position, reference)
        distances = tuple(r.logprobs - logprobs for r, logprobs in zip(group.rollouts, of_group, strict=True))
        filled.append(group.fill(token_rewards=with_kl(group, distances, coefficient)))
    return filled


def fill_values(run: Run, groups: Sequence[Group]) -> list[Group]:
    """The groups with values: the return expected before each token, by the weights before this step's updates.

    Raises UpdateError if values of a trained value model are not finite, ConfigError for those of a user's function.
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


def fill_returns(critic: CriticSection | None, groups: Sequence[Group], step: int) -> list[Group]:
    """The groups with returns, the targets of the value model (lambda-returns with `critic.gamma` and `critic.lam`).

    In pretraining they are Monte-Carlo returns (VC-PPO: Yuan et al. 2025, arXiv 2503.01491; VAPO: arXiv 2504.05118,
    section 4.1).
    """
    if critic is None:
        return list(groups)
    # 1: Monte-Carlo, without the values of an untrained model
    lam = 1.0 if is_pretraining(critic, step) else critic.lam
    return [group.fill(returns=value_targets(group, gamma=critic.gamma, lam=lam)) for group in groups]


def is_pretraining(critic: CriticSection | None, step: int) -> bool:
    """Whether this step updates only the value model (`critic.pretraining_steps`)."""
    return isinstance(critic, TrainedCritic) and step < critic.pretraining_steps


class CriticTally(UpdateTally):
    """The measurements of this rank's share. `metrics` combines all ranks, and is empty where there was no update."""

    def metrics(self) -> Metrics:
        if not self.results:
            return {}
        taken = [r for r in self.results if not r.skipped]
        metrics = {
            "critic/updates": float(len(taken)),
            "critic/skipped_updates": float(len(self.results) - len(taken)),
            "critic/learning_rate": self.results[-1].learning_rate,
            **of_value_loss(merged(ranks.gather_from_all(self.diagnostics, what="metrics"))),
        }
        return metrics | ({"critic/grad_norm": float(np.mean([r.grad_norm for r in taken]))} if taken else {})


def train_critic(run: Run, history: History, groups: Sequence[Group], step: int, *, planned: int) -> CriticTally:
    """Update a separate value model on the returns. `planned` counts the prompts of the plan, as in `make_batches`."""
    tally = CriticTally()
    section = run.config.critic
    if run.critic is None or not isinstance(section, TrainedCritic):
        return tally
    loss = ValueLoss(section.clip_range)
    # Every rollout that the value model has read, with the run's weighting over these rollouts
    batches = make_batches(
        [dataclasses.replace(group, keep=_read(run, group)) for group in groups],
        run.members.weighting,
        epochs=section.epochs,
        updates_per_step=section.updates_per_step,
        max_new_tokens=run.sampling.max_new_tokens,
        planned=planned,
        pass_rates=history.planned_pass_rates([group.prompt for group in groups]),
        drop_silent=False,
        seed=(run.seed, "critic", step),
    )
    for batch in batches:
        for mb in run.critic.micro_batches(batch):
            value = loss.separate_objective(run.critic.forward(mb), mb)
            run.critic.backward(value.total)
            tally.measure(value)
        tally.close(run.critic.step() if batch.sequences else run.critic.skip())
    return tally


def values_metrics(members: Members, groups: Sequence[Group]) -> Metrics:
    """The metrics of values and token rewards, from a step's groups.

    The mean distance from the reference policy is recovered from the token rewards: these were reduced by
    `advantage.kl_reward` times the distance.
    """
    metrics = describe_values(groups, gamma=members.gamma)
    penalties = joined([of for group in groups if group.token_rewards is not None for of in _penalties(group)])
    if len(penalties):
        metrics["reward/kl"] = float(penalties.mean()) / members.config.advantage.kl_reward
    return metrics


def describe_values(groups: Sequence[Group], *, gamma: float) -> dict[str, float]:
    """The metrics of values and returns, over the trainable tokens of verified rollouts that have values.

    Empty without values. Without returns (a critic that is not trained) there are no metrics of returns. A rollout
    whose values are all NaN was not read by the value model, and is left out. One with some NaN makes the metrics NaN.
    """
    valued = [group.take(_was_read(group)) for group in groups if group.values is not None]
    if not valued:
        return {}
    metrics = {"budget/tokens_valued": float(sum(int(group.lengths.sum()) for group in valued))}
    values = _own_tokens(valued, [values_of(group) for group in valued])
    if not len(values):
        return metrics
    monte_carlo = _own_tokens(valued, [monte_carlo_returns(group, gamma=gamma) for group in valued])
    metrics["critic/explained_variance"] = explained_variance(monte_carlo, values)
    metrics["critic/value_mean"] = float(values.mean())
    if with_returns := [group for group in valued if group.returns is not None]:
        returns = _own_tokens(with_returns, [group.returns or () for group in with_returns])
        metrics["critic/return_mean"] = float(returns.mean())
        metrics["critic/return_std"] = float(returns.std())
    return metrics


def _read(run: Run, group: Group) -> BoolArray:
    """[N] the rollouts that a value model reads: the kept ones, or with `critic.train_on` = "all" the verified ones.

    Those without a trainable token are left out.
    """
    assert group.keep is not None, "values come after selection"
    every = isinstance(run.config.critic, TrainedCritic) and run.config.critic.train_on == "all"
    some = np.array([rollout.sampled.any() for rollout in group.rollouts], dtype=np.bool_)
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


def _penalties(group: Group) -> Iterator[FloatArray]:
    """Per rollout that was read: the KL penalty at each trainable token."""
    whole = token_rewards(dataclasses.replace(group, token_rewards=None))
    for rollout, given, left in zip(group.rollouts, whole, token_rewards(group), strict=True):
        if not np.isnan(left).any():
            yield (given - left)[rollout.sampled]


def _was_read(group: Group) -> BoolArray:
    """[N] True where the rollout has a verdict, and the value model and the reference of a KL reward have read it."""
    read = zip(values_of(group), token_rewards(group), strict=True)
    return group.valid & np.array([not (np.isnan(v).all() or np.isnan(r).any()) for v, r in read], dtype=np.bool_)


def _own_tokens(groups: Sequence[Group], numbers: Sequence[Sequence[FloatArray]]) -> FloatArray:
    """[T] the G x N x [L] numbers at trainable tokens, flat."""
    return joined(
        [
            of_rollout[rollout.sampled]
            for group, of_group in zip(groups, numbers, strict=True)
            for rollout, of_rollout in zip(group.rollouts, of_group, strict=True)
        ]
    )
