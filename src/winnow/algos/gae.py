"""Credit per token against a value model: generalized advantage estimation, and what the values are taught.

V_t is what the value model expects before token t is sampled, r_t the reward of that token. Tokens that are not the
policy's (`Rollout.trainable`) are passed over: behind one that is comes the next that is, and a rollout's end is worth
0, also where it was cut off at its longest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from winnow.records import BoolArray, FloatArray, Group, Rollout
from winnow.registry import register

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Discount = Annotated[float, Field(gt=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
PerToken = tuple[FloatArray, ...]  # N x [L]

ROLLOUTS_AT_ONCE = 256  # side by side in one array, however long
TINY = 1e-8  # added to a standard deviation


@register("advantage", baseline="values", needs=("values", "token_rewards"))
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
    of l trained tokens (VAPO: Yue et al. 2025, arXiv 2504.05118, section 4.2). With `whiten` the trained tokens of all
    kept rollouts of the step together get mean 0 and standard deviation 1 (ddof 1), as PPO's reference code does.
    """
    credits = [_of_kept(group, gamma, lam, alpha) for group in groups]
    return _whitened(groups, credits) if whiten else credits


def value_targets(group: Group, *, gamma: float, lam: float) -> PerToken:
    """N x [L] what the value model is taught: A_t + V_t, with a `lam` of its own; 1 gives Monte-Carlo returns.

    Before any whitening (Schulman et al. 2017, arXiv 1707.06347; a lambda of its own: VC-PPO, Yuan et al. 2025, arXiv
    2503.01491, section 4.2). NaN where nothing was read, 0 at tokens that are not the policy's.
    """
    values, advantages = values_of(group), _estimate(group, gamma, [lam] * len(group.rollouts))
    mine = [trainable(rollout) for rollout in group.rollouts]
    return tuple(np.where(m, a + v, 0.0 * v) for m, a, v in zip(mine, advantages, values, strict=True))


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
    spread = float(np.var(returns)) if len(returns) else 0.0
    return 1.0 - float(np.var(returns - values)) / spread if spread > 0 else float("nan")


def trainable(rollout: Rollout) -> BoolArray:
    """[L] True where the token was the policy's choice."""
    mask = rollout.trainable
    return np.ones(len(rollout.tokens), dtype=np.bool_) if mask is None else mask


def values_of(group: Group) -> PerToken:
    """N x [L]. Raises ValueError where no value model has filled them."""
    if group.values is None:
        raise ValueError(f"group {group.prompt.id!r} has no values yet: they come before advantages")
    return group.values


def _of_kept(group: Group, gamma: float, lam: float | Literal["length"], alpha: float) -> PerToken:
    lams = [_adapted(rollout, alpha) if lam == "length" else lam for rollout in group.rollouts]
    if group.keep is None:
        raise ValueError(f"group {group.prompt.id!r} has no keep yet: advantages come after selection")
    places = np.flatnonzero(group.keep)
    found = _estimate(group.take(places), gamma, [lams[place] for place in places])
    credit = [np.zeros(length) for length in group.lengths]
    for place, advantages in zip(places, found, strict=True):
        credit[place] = advantages
    return tuple(credit)


def _adapted(rollout: Rollout, alpha: float) -> float:
    """Lambda of a rollout by its length."""
    return max(0.0, 1.0 - 1.0 / (alpha * max(1, int(trainable(rollout).sum()))))


def _estimate(group: Group, gamma: float, lams: Sequence[float]) -> PerToken:
    """N x [L] advantages; 0 at tokens that are not the policy's."""
    mine = [trainable(rollout) for rollout in group.rollouts]
    deltas = []
    for mask, rewards, values in zip(mine, token_rewards(group), values_of(group), strict=True):
        expected = values[mask]
        deltas.append(rewards[mask] + gamma * np.append(expected[1:], 0.0)[: len(expected)] - expected)
    sums = _decayed_sums(deltas, gamma * np.array(lams))
    return tuple(_spread(mask, advantages) for mask, advantages in zip(mine, sums, strict=True))


def _decayed_sums(numbers: Sequence[FloatArray], decay: FloatArray) -> Iterator[FloatArray]:
    """s_t = x_t + decay s_(t+1) of each array, from its own end; `decay` has one number for each."""
    for start in range(0, len(numbers), ROLLOUTS_AT_ONCE):
        some, by = numbers[start : start + ROLLOUTS_AT_ONCE], decay[start : start + ROLLOUTS_AT_ONCE]
        longest = max(map(len, some))
        table = np.zeros((longest, len(some)))  # all end in the last row, so that none reaches over another's end
        for column, array in enumerate(some):
            table[longest - len(array) :, column] = array
        for row in range(longest - 2, -1, -1):
            table[row] += by * table[row + 1]
        yield from (table[longest - len(array) :, column].copy() for column, array in enumerate(some))


def _whitened(groups: Sequence[Group], credits: Sequence[PerToken]) -> list[PerToken]:
    masks = [
        [trainable(rollout) & keep for rollout, keep in zip(group.rollouts, _kept(group), strict=True)]
        for group in groups
    ]
    numbers = [a[m] for credit, of in zip(credits, masks, strict=True) for a, m in zip(credit, of, strict=True)]
    trained = np.concatenate(numbers or [np.zeros(0)])
    if len(trained) < 2:
        return list(credits)
    mean, scale = float(trained.mean()), float(trained.std(ddof=1)) + TINY
    return [
        tuple(np.where(mask, (a - mean) / scale, 0.0) for a, mask in zip(credit, of, strict=True))
        for credit, of in zip(credits, masks, strict=True)
    ]


def _kept(group: Group) -> BoolArray:
    assert group.keep is not None, "advantages come after selection"
    return group.keep


def _on_last(rollout: Rollout, reward: float) -> FloatArray:
    rewards = np.zeros(len(rollout.tokens))
    mine = np.flatnonzero(trainable(rollout))
    if len(mine):
        rewards[mine[-1]] = reward
    return rewards


def _spread(mask: BoolArray, numbers: FloatArray) -> FloatArray:
    out = np.zeros(len(mask))
    out[mask] = numbers
    return out
