"""A step's numbers about values: how much of the returns they explain, what they are and what they are taught."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from winnow.algos.gae import explained_variance, monte_carlo_returns, token_rewards, trainable, values_of
from winnow.records import BoolArray, FloatArray, Group


def describe_values(groups: Sequence[Group], *, gamma: float) -> dict[str, float]:
    """The metrics of values and returns, over the trainable tokens of verified rollouts that have values.

    Without values there are none, and without returns (a critic that is not trained) none of what is taught. Values
    that are NaN at some tokens of a rollout make the numbers NaN; a rollout whose values are all NaN was not read.
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
    if taught := [group for group in valued if group.returns is not None]:
        returns = _own_tokens(taught, [group.returns or () for group in taught])
        metrics["critic/return_mean"] = float(returns.mean())
        metrics["critic/return_std"] = float(returns.std())
    return metrics


def describe_kl(groups: Sequence[Group], *, coefficient: float) -> dict[str, float]:
    """The mean distance from the reference that `coefficient` times was taken off token rewards; nothing without."""
    taken = [rewards for group in groups if group.token_rewards is not None for rewards in _taken_off(group)]
    numbers = np.concatenate(taken or [np.zeros(0)])
    return {"reward/kl": float(numbers.mean()) / coefficient} if len(numbers) else {}


def _taken_off(group: Group) -> Iterator[FloatArray]:
    """Of each rollout that was read, at each of the policy's tokens."""
    whole = token_rewards(dataclasses.replace(group, token_rewards=None))
    for rollout, given, left in zip(group.rollouts, whole, token_rewards(group), strict=True):
        if not np.isnan(left).any():
            yield (given - left)[trainable(rollout)]


def _read(group: Group) -> BoolArray:
    """[N] True where there is a verdict, and a value model has read the rollout."""
    return group.valid & np.array([not np.isnan(values).all() for values in values_of(group)], dtype=np.bool_)


def _own_tokens(groups: Sequence[Group], numbers: Sequence[Sequence[FloatArray]]) -> FloatArray:
    """[T] what G x N x [L] numbers say at tokens that are the policy's."""
    return np.concatenate(
        [
            of_rollout[trainable(rollout)]
            for group, of_group in zip(groups, numbers, strict=True)
            for rollout, of_rollout in zip(group.rollouts, of_group, strict=True)
        ]
        or [np.zeros(0)]
    )
