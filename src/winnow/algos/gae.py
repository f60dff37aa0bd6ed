"""Advantages per token against a value model: generalized advantage estimation, and the value model's targets.

V_t is the return that the value model predicts before token t is sampled, r_t the reward of that token. Tokens that the
policy did not sample (`Rollout.trainable`) are skipped: each sampled token is followed by the next sampled one. Skipped
tokens have no reward, no advantage and no return. The value after a rollout's end is 0, also where it was cut off at
its maximum length.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from winnow.algos.advantage import is_flat, kept, one_per_group
from winnow.bounds import AboveZeroToOne, Positive, ZeroToOne
from winnow.errors import wrong_result
from winnow.records import FloatArray, Group, Rollout, joined
from winnow.registry import register

PerToken = tuple[FloatArray, ...]  # N x [L]

TINY = 1e-8  # added to a standard deviation, against division by 0


@register("advantage", baseline="values", needs=("values", "token_rewards"))
def gae(
    groups: Sequence[Group],
    *,
    gamma: AboveZeroToOne = 1.0,
    lam: ZeroToOne | Literal["length"] = 0.95,
    alpha: Positive = 0.05,
    whiten: bool = True,
) -> list[PerToken]:
    """A_t = d_t + gamma lam A_(t+1), d_t = r_t + gamma V_(t+1) - V_t, of every trained token of a kept rollout.

    Schulman et al. 2016 (arXiv 1506.02438), eq. 16. `lam = "length"` is 1 - 1 / (`alpha` l), at least 0, for a rollout
    of l trained tokens (VAPO: Yue et al. 2025, arXiv 2504.05118, eq. 5). With `whiten` the trained tokens of all kept
    rollouts of the step together get mean 0 and standard deviation 1 (ddof 1); all equal, or one token: 0.
    """
    trained = [group.take(kept(group)) for group in groups]
    by_group = [_estimates(g, gamma, [_lambda(lam, alpha, rollout) for rollout in g.rollouts]) for g in trained]
    if whiten:
        by_group = _whitened(by_group)
    return [_scattered(group, advantages) for group, advantages in zip(groups, by_group, strict=True)]


def value_targets(group: Group, *, gamma: float, lam: float) -> PerToken:
    """N x [L] targets of the value model: A_t + V_t, with a separate `lam`; 1 gives Monte-Carlo returns.

    They are computed before any whitening (Dhariwal et al. 2017, openai/baselines, ppo2). The separate lambda: VC-PPO
    (Yuan et al. 2025, arXiv 2503.01491); VAPO, section 4.1. NaN where no value was read, 0 at tokens that the policy
    did not sample.
    """
    estimates = _estimates(group, gamma, [lam] * len(group.rollouts))
    targets = tuple(0.0 * values for values in values_of(group))  # NaN stays NaN
    for target, rollout, values, advantages in zip(targets, group.rollouts, values_of(group), estimates, strict=True):
        sampled = rollout.sampled
        target[sampled] = advantages + values[sampled]
    return targets


def monte_carlo_returns(group: Group, *, gamma: float) -> PerToken:
    """N x [L] the discounted sum of rewards from each token on; 0 at tokens that the policy did not sample."""
    nothing = tuple(np.zeros(size) for size in group.sizes)
    return value_targets(dataclasses.replace(group, values=nothing), gamma=gamma, lam=1.0)


def token_rewards(group: Group) -> PerToken:
    """N x [L] the reward of each token: the rollout's, on its last sampled token, unless `token_rewards` is filled."""
    if group.token_rewards is not None:
        return group.token_rewards
    rewards = tuple(np.zeros(size) for size in group.sizes)
    for of_tokens, rollout, reward in zip(rewards, group.rollouts, group.rewards, strict=True):
        of_tokens[np.flatnonzero(rollout.sampled)[-1:]] = reward
    return rewards


def with_kl(group: Group, distances: PerToken, coefficient: float) -> PerToken:
    """N x [L] token rewards, minus `coefficient` times log(p / p_reference) at each token that the policy sampled.

    Ziegler et al. 2019 (arXiv 1909.08593), eq. 2; per token as in Ouyang et al. 2022 (arXiv 2203.02155), section 3.5.
    """
    rewards = token_rewards(group)
    return tuple(
        reward - coefficient * np.where(rollout.sampled, distance, 0.0)
        for rollout, reward, distance in zip(group.rollouts, rewards, distances, strict=True)
    )


def explained_variance(returns: FloatArray, values: FloatArray) -> float:
    """1 - Var(returns - values) / Var(returns), both [T]; NaN where all returns are equal."""
    return float("nan") if is_flat(returns) else 1.0 - float(np.var(returns - values) / np.var(returns))


def values_of(group: Group) -> PerToken:
    """N x [L] values of a group. Raises ValueError if no value model has filled them."""
    if group.values is None:
        raise ValueError(f"group {group.prompt.id!r} has no values yet; fill them before advantages")
    return group.values


def check_values(answer: Any, groups: Sequence[Group]) -> list[PerToken]:
    """The result of a critic as float64: per group N x [L], finite at every trained token of a kept rollout.

    Raises ConfigError for any other result.
    """
    by_group = one_per_group(answer, groups, key="critic")
    return [_checked_values(values, group) for values, group in zip(by_group, groups, strict=True)]


def _checked_values(answer: Any, group: Group) -> PerToken:
    try:
        values = tuple(np.array(numbers, dtype=np.float64) for numbers in answer)
    except (TypeError, ValueError, RuntimeError):  # torch raises RuntimeError for a tensor with a gradient
        values = ()
    if [array.shape for array in values] == [(size,) for size in group.sizes.tolist()]:
        read = zip(values, group.rollouts, kept(group), strict=True)
        if all(np.isfinite(array[rollout.sampled]).all() for array, rollout, keep in read if keep):
            return values
    raise wrong_result(
        f"the critic returned {reprlib.repr(answer)} for the {len(group.rollouts)} rollouts of {group.prompt.id!r}",
        remedy="return one array per rollout with a number per token, finite where the rollout is kept",
        key="critic",
    )


def _lambda(lam: float | Literal["length"], alpha: float, rollout: Rollout) -> float:
    """The configured lambda, or that of the rollout's length."""
    return max(0.0, 1.0 - 1.0 / (alpha * max(1, int(rollout.sampled.sum())))) if lam == "length" else lam


def _estimates(group: Group, gamma: float, lams: Sequence[float]) -> list[FloatArray]:
    """N x [trained tokens] advantages, with tokens that the policy did not sample removed."""
    estimates = []
    for rollout, reward, values, lam in zip(group.rollouts, token_rewards(group), values_of(group), lams, strict=True):
        sampled = rollout.sampled
        expected, following = values[sampled], np.zeros(int(sampled.sum()))
        following[:-1] = expected[1:]
        estimates.append(_decayed_sums(reward[sampled] + gamma * following - expected, gamma * lam))
    return estimates


def _decayed_sums(numbers: FloatArray, decay: float) -> FloatArray:
    """s_t = x_t + decay s_(t+1), by doubling: add to each sum of `reach` numbers the sum of the next `reach`."""
    sums, reach = numbers.copy(), 1
    while reach < len(sums):
        sums[:-reach] += decay**reach * sums[reach:]
        reach *= 2
    return sums


def _whitened(by_group: Sequence[Sequence[FloatArray]]) -> list[list[FloatArray]]:
    numbers = joined([advantages for group in by_group for advantages in group])
    if is_flat(numbers):
        return [[np.zeros_like(advantages) for advantages in group] for group in by_group]
    mean, scale = float(numbers.mean()), float(numbers.std(ddof=1)) + TINY
    return [[(advantages - mean) / scale for advantages in group] for group in by_group]


def _scattered(group: Group, of_kept: Sequence[FloatArray]) -> PerToken:
    """Advantages of the trained tokens of kept rollouts -> of all tokens of all rollouts, 0 elsewhere."""
    everything = tuple(np.zeros(size) for size in group.sizes)
    for place, advantages in zip(np.flatnonzero(kept(group)), of_kept, strict=True):
        everything[place][group.rollouts[place].sampled] = advantages
    return everything
