"""A step's metrics of values: how much of the returns they explain, their mean, and the returns they are trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from winnow.algos.gae import explained_variance, monte_carlo_returns, token_rewards, trainable, values_of
from winnow.records import BoolArray, FloatArray, Group


def describe_values(groups: Sequence[Group], *, gamma: float) -> dict[str, float]:
    """The metrics of values and returns, over the trainable tokens of verified rollouts that have values.

    Empty without values. Without returns (a critic that is not trained) there are no metrics of returns. A rollout
    whose values are all NaN was not read by the value model, and is left out. One with some NaN makes the metrics NaN.
    """
    valued = [group.take(_read(group)) for group in groups if group.values is not None]
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


def describe_kl(groups: Sequence[Group], *, coefficient: float) -> dict[str, float]:
    """The mean distance from the reference policy, recovered from the token rewards: these were reduced by
    `coefficient` times the distance. Empty where no group has token rewards.
    """
    penalties = [rewards for group in groups if group.token_rewards is not None for rewards in _penalties(group)]
    numbers = np.concatenate(penalties or [np.zeros(0)])
    return {"reward/kl": float(numbers.mean()) / coefficient} if len(numbers) else {}


def _penalties(group: Group) -> Iterator[FloatArray]:
    """Per rollout that was read: the KL penalty at each trainable token."""
    whole = token_rewards(dataclasses.replace(group, token_rewards=None))
    for rollout, given, left in zip(group.rollouts, whole, token_rewards(group), strict=True):
        if not np.isnan(left).any():
            yield (given - left)[trainable(rollout)]


def _read(group: Group) -> BoolArray:
    """[N] True where the rollout has a verdict and a value model has read it."""
    return group.valid & np.array([not np.isnan(values).all() for values in values_of(group)], dtype=np.bool_)


def _own_tokens(groups: Sequence[Group], numbers: Sequence[Sequence[FloatArray]]) -> FloatArray:
    """[T] the G x N x [L] numbers at trainable tokens, flat."""
    return np.concatenate(
        [
            of_rollout[trainable(rollout)]
            for group, of_group in zip(groups, numbers, strict=True)
            for rollout, of_rollout in zip(group.rollouts, of_group, strict=True)
        ]
        or [np.zeros(0)]
    )
