"""Credit per token against a value model: generalized advantage estimation, and what the values are taught.

V_t is what the value model expects before token t is sampled, r_t the reward of that token. Tokens that are not the
policy's (`Rollout.trainable`) are passed over: behind one that is comes the next that is. They have no reward, no
advantage and no return. A rollout's end is worth 0, also where it was cut off at its longest.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from winnow.algos.advantage import flat
from winnow.errors import ConfigError
from winnow.records import BoolArray, FloatArray, Group, Rollout
from winnow.registry import register

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Discount = Annotated[float, Field(gt=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
PerToken = tuple[FloatArray, ...]  # N x [L]

TINY = 1e-8  # added to a standard deviation


@register(
    "advantage",
    baseline="values",
    needs=("values", "token_rewards"),
    instead_of={"ppo": "PPO's, with a [critic], which is the value model (docs/ppo.md)"},
)
def gae(
    groups: Sequence[Group],
    *,
    gamma: Discount = 1.0,
    lam: Share | Literal["length"] = 0.95,
    alpha: Positive = 0.05,
    whiten: bool = True,
) -> list[PerToken]:
    """A_t = d_t + gamma lam A_(t+1), d_t = r_t + gamma V_(t+1) - V_t, of every trained token of a kept rollout.

    Schulman et al. 2016 (arXiv 1506.02438), eq. 16. `lam = "length"` is 1 - 1 / (`alpha` l), at least 0, for a rollout
    of l trained tokens (VAPO: Yue et al. 2025, arXiv 2504.05118, eq. 5). With `whiten` the trained tokens of all kept
    rollouts of the step together get mean 0 and standard deviation 1 (ddof 1); all equal, or one token: 0.
    """
    kept = [group.take(_kept(group)) for group in groups]
    found = [_estimates(group, gamma, [_lambda(lam, alpha, rollout) for rollout in group.rollouts]) for group in kept]
    if whiten:
        found = _whitened(found)
    return [_scattered(group, advantages) for group, advantages in zip(groups, found, strict=True)]


def value_targets(group: Group, *, gamma: float, lam: float) -> PerToken:
    """N x [L] what the value model is taught: A_t + V_t, with a `lam` of its own; 1 gives Monte-Carlo returns.

    They come before any whitening (Dhariwal et al. 2017, openai/baselines, ppo2). A lambda of their own: VC-PPO (Yuan
    et al. 2025, arXiv 2503.01491); VAPO, section 4.1. NaN where nothing was read, 0 at tokens that are not the
    policy's.
    """
    found = _estimates(group, gamma, [lam] * len(group.rollouts))
    targets = tuple(0.0 * values for values in values_of(group))  # what is NaN stays it
    for target, rollout, values, advantages in zip(targets, group.rollouts, values_of(group), found, strict=True):
        mine = trainable(rollout)
        target[mine] = advantages + values[mine]
    return targets


def monte_carlo_returns(group: Group, *, gamma: float) -> PerToken:
    """N x [L] the discounted rewards from each token on; 0 at tokens that are not the policy's."""
    nothing = tuple(np.zeros(length) for length in group.lengths)
    return value_targets(dataclasses.replace(group, values=nothing), gamma=gamma, lam=1.0)


def token_rewards(group: Group) -> PerToken:
    """N x [L] the reward of each token: the rollout's, on the last token that is the policy's, unless it is filled."""
    if group.token_rewards is not None:
        return group.token_rewards
    return tuple(_on_last(rollout, reward) for rollout, reward in zip(group.rollouts, group.rewards, strict=True))


def with_kl(group: Group, distances: PerToken, coefficient: float) -> PerToken:
    """N x [L] token rewards, less `coefficient` times log(p / p_reference) at each token of the policy's.

    Ziegler et al. 2019 (arXiv 1909.08593), eq. 2; per token as in Ouyang et al. 2022 (arXiv 2203.02155), section 3.5.
    """
    rewards = token_rewards(group)
    return tuple(
        reward - coefficient * np.where(trainable(rollout), distance, 0.0)
        for rollout, reward, distance in zip(group.rollouts, rewards, distances, strict=True)
    )


def explained_variance(returns: FloatArray, values: FloatArray) -> float:
    """1 - Var(returns - values) / Var(returns), both [T]; NaN where all returns are equal."""
    return float("nan") if flat(returns) else 1.0 - float(np.var(returns - values) / np.var(returns))


def trainable(rollout: Rollout) -> BoolArray:
    """[L] True where the token was the policy's choice."""
    mask = rollout.trainable
    return np.ones(len(rollout.tokens), dtype=np.bool_) if mask is None else mask


def values_of(group: Group) -> PerToken:
    """N x [L]. Raises ValueError where no value model has filled them."""
    if group.values is None:
        raise ValueError(f"group {group.prompt.id!r} has no values yet: they come before advantages")
    return group.values


def check_values(answer: Any, groups: Sequence[Group]) -> list[PerToken]:
    """What a critic answered, as float64: per group N x [L], finite at every trained token of a kept rollout.

    Raises ConfigError when it is something else.
    """
    answers = list(answer) if isinstance(answer, Iterable) else []
    if len(answers) != len(groups):
        raise ConfigError(
            f"the critic returned {reprlib.repr(answer)} for {len(groups)} groups",
            remedy="return for each group one array per rollout",
            key="critic",
            code="config.member_result",
        )
    return [_checked(values, group) for values, group in zip(answers, groups, strict=True)]


def _checked(answer: Any, group: Group) -> PerToken:
    try:
        values = tuple(np.array(numbers, dtype=np.float64) for numbers in answer)
    except (TypeError, ValueError, RuntimeError):  # the last is torch's, of a tensor with a gradient
        values = ()
    if [array.shape for array in values] == [(length,) for length in group.lengths.tolist()]:
        kept = zip(values, group.rollouts, _kept(group), strict=True)
        if all(np.isfinite(array[trainable(rollout)]).all() for array, rollout, keep in kept if keep):
            return values
    raise ConfigError(
        f"the critic returned {reprlib.repr(answer)} for the {len(group.rollouts)} rollouts of {group.prompt.id!r}",
        remedy="return one array per rollout with a number per token, finite where the rollout is kept",
        key="critic",
        code="config.member_result",
    )


def _kept(group: Group) -> BoolArray:
    if group.keep is None:
        raise ValueError(f"group {group.prompt.id!r} has no keep yet: advantages come after selection")
    return group.keep


def _lambda(lam: float | Literal["length"], alpha: float, rollout: Rollout) -> float:
    """The one given, or that of the rollout's length."""
    return max(0.0, 1.0 - 1.0 / (alpha * max(1, int(trainable(rollout).sum())))) if lam == "length" else lam


def _estimates(group: Group, gamma: float, lams: Sequence[float]) -> list[FloatArray]:
    """N x [trained tokens] advantages: with nothing of another hand left between them, each is followed by the next."""
    found = []
    for rollout, reward, values, lam in zip(group.rollouts, token_rewards(group), values_of(group), lams, strict=True):
        mine = trainable(rollout)
        expected, following = values[mine], np.zeros(int(mine.sum()))
        following[:-1] = expected[1:]
        found.append(_decayed_sums(reward[mine] + gamma * following - expected, gamma * lam))
    return found


def _decayed_sums(numbers: FloatArray, decay: float) -> FloatArray:
    """s_t = x_t + decay s_(t+1), by doubling: a sum of the next `reach` numbers and that of as many behind them."""
    sums, reach = numbers.copy(), 1
    while reach < len(sums):
        sums[:-reach] += decay**reach * sums[reach:]
        reach *= 2
    return sums


def _whitened(found: Sequence[Sequence[FloatArray]]) -> list[list[FloatArray]]:
    numbers = np.concatenate([advantages for group in found for advantages in group] or [np.zeros(0)])
    if flat(numbers):
        return [[np.zeros_like(advantages) for advantages in group] for group in found]
    mean, scale = float(numbers.mean()), float(numbers.std(ddof=1)) + TINY
    return [[(advantages - mean) / scale for advantages in group] for group in found]


def _scattered(group: Group, found: Sequence[FloatArray]) -> PerToken:
    """Advantages of the trained tokens of kept rollouts -> of all tokens of all rollouts, 0 elsewhere."""
    everything = tuple(np.zeros(length) for length in group.lengths)
    for place, advantages in zip(np.flatnonzero(_kept(group)), found, strict=True):
        everything[place][trainable(group.rollouts[place])] = advantages
    return everything


def _on_last(rollout: Rollout, reward: float) -> FloatArray:
    rewards = np.zeros(len(rollout.tokens))
    rewards[np.flatnonzero(trainable(rollout))[-1:]] = reward
    return rewards
