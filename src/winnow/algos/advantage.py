"""Advantages: how much better than its baseline a rollout was.

An advantage takes all groups of a step, with rewards and `keep` filled and without failed rollouts. It returns one
array per group: [N], or one array [L] per rollout for an advantage per token. Rollouts that are not kept get 0.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal, cast

import numpy as np
from pydantic import Field

from winnow.errors import wrong_result
from winnow.records import BoolArray, FloatArray, Group, joined
from winnow.registry import register

Statistics = Literal["kept", "group"]
Eps = Annotated[float, Field(ge=0.0)]
Credit = FloatArray | tuple[FloatArray, ...]  # [N], or N x [L]

# Rewards that agree to this relative precision are equal: else 0.1 * 3 and 0.3 would give advantages of pure rounding.
FLAT = 1e-9


@register("advantage", baseline="group")
def grpo(groups: Sequence[Group], *, statistics: Statistics = "kept", eps: Eps = 1e-4) -> list[FloatArray]:
    """A_i = (r_i - mean) / (std + eps), std with ddof 1.

    Shao et al. 2024 (arXiv 2402.03300), section 4.1. `statistics = "kept"` takes mean and std over the kept rollouts,
    after selection, as the code of PODS does (arXiv 2504.13818); "group" takes them over all. Flat or single: 0.
    """
    return per_group(lambda r, over: _centred(r, over) / (_std(over) + eps), groups, statistics)


@register("advantage", baseline="group")
def dr_grpo(groups: Sequence[Group], *, statistics: Statistics = "kept") -> list[FloatArray]:
    """A_i = r_i - mean, without the division that gives easy and hard prompts more weight.

    Dr. GRPO (Liu et al. 2025, arXiv 2503.20783), eq. 3. Use it with the `constant` weighting. Flat or single: 0.
    """
    return per_group(_centred, groups, statistics)


@register("advantage", baseline="group")
def rloo(groups: Sequence[Group], *, statistics: Statistics = "kept") -> list[FloatArray]:
    """A_i = r_i - mean of the others: an unbiased baseline.

    Kool et al. 2019; Ahmadian et al. 2024 (arXiv 2402.14740), section 3.2. It is N / (N - 1) times `dr_grpo` where N
    counts the rollouts of the statistics. Flat or single: 0.
    """
    return per_group(lambda r, over: _centred(r, over) * len(over) / (len(over) - 1), groups, statistics)


@register("advantage", baseline="group")
def maxrl(groups: Sequence[Group], *, statistics: Statistics = "kept") -> list[FloatArray]:
    """A_i = (r_i - mean) / mean: with more rollouts, closer to the gradient of log P(correct) than to that of P.

    MaxRL (Tajwar et al. 2026, arXiv 2602.02710), checked against the authors' code (tajwarfahim/maxrl, verl/trainer/
    ppo/core_algos.py), without its 1e-6 beside the mean. Rewards are 0 or 1: the expected gradient over the n rollouts
    of a prompt is then that of the sum over k < n of pass@k / k (by enumeration), if no rollout is dropped. A mean of 0
    or less gives 0. Flat or single: 0; in the authors' code a single correct rollout has 1e6.
    """
    return per_group(_relative, groups, statistics)


@register("advantage", baseline="batch")
def batch(groups: Sequence[Group], *, eps: Eps = 1e-4) -> list[FloatArray]:
    """A_i = (r_i - mean) / (std + eps) over the kept rollouts of all groups of the step, std with ddof 1.

    The global normalisation of REINFORCE++ (Hu et al. 2025, arXiv 2501.03262, eq. 5) on outcome rewards. A prompt that
    is always solved gets a positive advantage for being easy. All rewards equal, or one rollout: 0.
    """
    over = joined([group.rewards[kept(group)] for group in groups])
    if is_flat(over):
        return [np.zeros(len(group.rollouts), dtype=np.float64) for group in groups]
    scale = _std(over) + eps
    return [np.where(kept(group), _centred(group.rewards, over) / scale, 0.0) for group in groups]


@register("advantage", baseline="none")
def raft(groups: Sequence[Group]) -> list[FloatArray]:
    """1 for a correct rollout, 0 for any other: rejection sampling as an advantage.

    RAFT (Dong et al. 2023, arXiv 2304.06767), as in GVM's released code (arXiv 2505.02391): wrong rollouts add nothing
    to the gradient, but their tokens stay in the denominator of a token mean.
    """
    return [(kept(group) & group.correct).astype(np.float64) for group in groups]


@register("advantage", baseline="none")
def raw(groups: Sequence[Group]) -> list[FloatArray]:
    """A_i = r_i: REINFORCE without a baseline (Williams 1992). A group of zero rewards gives 0."""
    return [np.where(kept(group), group.rewards, 0.0) for group in groups]


def per_group(
    credit: Callable[[FloatArray, FloatArray], FloatArray], groups: Sequence[Group], statistics: Statistics
) -> list[FloatArray]:
    """Apply `credit(rewards [N], baseline rewards [M]) -> [N]` to every group; 0 where not kept, and 0 where the
    baseline rewards are flat or fewer than two.
    """
    if statistics not in ("kept", "group"):
        raise ValueError(f"statistics = {statistics!r}: choose 'kept' or 'group'")
    credits = []
    for group in groups:
        keep = kept(group)
        over = group.rewards[keep] if statistics == "kept" else group.rewards
        flat = is_flat(over)
        credits.append(np.zeros(len(keep)) if flat else np.where(keep, credit(group.rewards, over), 0.0))
    return credits


def is_flat(rewards: FloatArray) -> bool:
    """Whether all rewards are equal, or fewer than two, so that a baseline of them gives no signal."""
    if len(rewards) < 2:
        return True
    low, high = float(rewards.min()), float(rewards.max())
    return high - low <= FLAT * max(1.0, -low, high)


def check_credits(credits: Iterable[Any], groups: Sequence[Group]) -> list[Credit]:
    """The result of an advantage as float64: per group [N], or N x [L] with a number per token.

    Raises ConfigError for another form, or a number that is not finite.
    """
    by_group = one_per_group(credits, groups, key="advantage")
    return [_checked_credit(credit, group) for credit, group in zip(by_group, groups, strict=True)]


def one_per_group(answer: Any, groups: Sequence[Group], *, key: str) -> list[Any]:
    """The result of the member `key` as a list. Raises ConfigError unless it has one entry per group."""
    by_group = list(answer) if isinstance(answer, Iterable) else []
    if len(by_group) != len(groups):
        raise wrong_result(
            f"the {key} returned {reprlib.repr(answer)} for {len(groups)} groups",
            remedy="return one entry for each group",
            key=key,
        )
    return by_group


def _checked_credit(credit: Any, group: Group) -> Credit:
    per_rollout = isinstance(credit, np.ndarray) and credit.shape == (len(group.rollouts),)
    if per_rollout and credit.dtype == np.float64 and np.isfinite(credit).all():
        return cast(FloatArray, credit)
    arrays, lengths = _finite(credit), group.sizes.tolist()
    shapes = [array.shape for array in arrays]
    if shapes == [()] * len(lengths):
        return np.array(arrays, dtype=np.float64)
    if shapes == [(length,) for length in lengths]:
        return arrays
    raise wrong_result(
        f"the advantage returned {reprlib.repr(credit)} for the {len(lengths)} rollouts of {group.prompt.id!r}",
        remedy="return one finite number per rollout, or one array per rollout with a finite number per token",
        key="advantage",
    )


def _finite(credit: Any) -> tuple[FloatArray, ...]:
    """One array per entry; an empty tuple where an entry is not numeric, or a number is not finite."""
    try:
        arrays = tuple(np.asarray(numbers, dtype=np.float64) for numbers in credit)
    except (TypeError, ValueError):
        return ()
    return arrays if all(np.isfinite(array).all() for array in arrays) else ()


def kept(group: Group) -> BoolArray:
    """[N] the selected rollouts. Raises ValueError before selection."""
    if group.keep is None:
        raise ValueError(f"group {group.prompt.id!r} has no keep yet; select before advantages")
    return group.keep


def _centred(rewards: FloatArray, over: FloatArray) -> FloatArray:
    return np.asarray(rewards - over.mean(), dtype=np.float64)


def _relative(rewards: FloatArray, over: FloatArray) -> FloatArray:
    mean = float(over.mean())
    return _centred(rewards, over) / mean if mean > 0 else np.zeros(len(rewards), dtype=np.float64)


def _std(over: FloatArray) -> float:
    # `over.std(ddof=1)`, to the same bits. For a few numbers its checks take longer than these sums
    off = _centred(over, over)
    return math.sqrt(float((off * off).sum()) / (len(over) - 1))
