"""A policy that has lost an ability: its answers are no longer right, or no longer readable.

The newest steps are compared with the block of steps whose accuracy has the highest lower bound (`Past.best`). If
prompt, golds and format worked then, they are not the cause. The reward separates two causes: if it fell as well, an
update was too large; if it rose, it rewards something other than right answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from winnow.alarms.alarm import Evidence
from winnow.alarms.past import (
    ACCURACY,
    BLOCK,
    REWARD,
    Past,
    Row,
    accuracy,
    are_comparable,
    mean,
    prompts_of,
    rewards,
    share,
    spread_of,
)
from winnow.config import AlarmsSection

RECENT = 3  # steps that are compared, at least
LOST = 0.1  # of the best share of right or of readable answers, at which the ability counts as lost
RISEN = 2.0  # standard errors above which a reward has risen
PART = "reward/part/"


def collapse(past: Past, limits: AlarmsSection) -> Evidence | None:
    """Hardly any answer is right, or readable, where many were before, and the reward has not risen beyond noise."""
    for now in _newest(past, limits):
        if _reward_rise(past.best, now) > RISEN:
            continue
        for what, of in (("right", accuracy), ("readable", _readable)):
            was, is_now = of(past.best), of(now)
            if is_now <= LOST * was and _fall(past.best, now, of) > limits.standard_errors:
                return Evidence(
                    f"{is_now:.1%} of the answers of the last {len(now)} steps are {what}; {_when(past.best)} it was "
                    f"{was:.1%}",
                    {ACCURACY: accuracy(now), "before": accuracy(past.best), "readable": _readable(now)},
                    cause="an update was too large and destroyed the policy; prompt, format and golds are not the "
                    "cause, as they worked before; resume from an earlier checkpoint with a lower learning rate",
                )
    return None


def reward_without_accuracy(past: Past, limits: AlarmsSection) -> Evidence | None:
    """The mean reward is above that of the best block and fewer answers are right, both beyond noise."""
    for now in _newest(past, limits):
        was, is_now = accuracy(past.best), accuracy(now)
        least = limits.drop * spread_of(was)
        if not (was - is_now > least and _fall(past.best, now, accuracy) > limits.standard_errors):
            continue
        if _reward_rise(past.best, now) > RISEN:
            before, reward = mean(past.best, REWARD), mean(now, REWARD)
            return Evidence(
                f"the mean reward rose from {before:.3g} to {reward:.3g} while the share of right answers fell from "
                f"{was:.1%} ({_when(past.best)}) to {is_now:.1%}{_parts(past.best, now)}",
                {REWARD: reward, "reward_before": before, ACCURACY: is_now, "accuracy_before": was},
            )
    return None


def _newest(past: Past, limits: AlarmsSection) -> Iterator[Sequence[Row]]:
    """The newest steps, in windows of increasing length, if they are comparable and follow the best block."""
    for count in sorted({RECENT, limits.untrained_steps, limits.steps, BLOCK}):
        rows = past.last(count)
        if rows and past.best and rows[0]["step"] > past.best[-1]["step"] and are_comparable(rows):
            yield rows


def _fall(before: Sequence[Row], now: Sequence[Row], of: Callable[[Sequence[Row]], float]) -> float:
    """The fall of a share in standard errors, under the hypothesis of equal shares; NaN where the error is 0.

    The error is an upper bound: it counts each prompt as one number, as if all its rollouts were alike.
    """
    counts = prompts_of(before), prompts_of(now)
    shares = of(before), of(now)
    pooled = sum(count * one for count, one in zip(counts, shares, strict=True)) / sum(counts)
    noise = spread_of(pooled) * math.sqrt(1 / counts[0] + 1 / counts[1])
    return (shares[0] - shares[1]) / noise if noise > 0 else math.nan


def _reward_rise(before: Sequence[Row], now: Sequence[Row]) -> float:
    """The rise of the mean reward in standard errors; NaN where the error is 0 or not known."""
    was, is_now = rewards(before), rewards(now)
    noise = math.sqrt(was.variance + is_now.variance)
    return (is_now.mean - was.mean) / noise if noise > 0 else math.nan


def _readable(rows: Sequence[Row]) -> float:
    return 1.0 - share(rows, "outcome/unparsable", "budget/rollouts")


def _parts(before: Sequence[Row], now: Sequence[Row]) -> str:
    """The parts of the reward that rose, with their numbers, largest rise first."""
    names = sorted({name for row in now for name in row if name.startswith(PART)})
    ends = [(name.removeprefix(PART), mean(before, name), mean(now, name)) for name in names]
    risen = sorted((end for end in ends if end[2] > end[1]), key=lambda end: end[1] - end[2])
    changes = [f"{name} from {was:.3g} to {is_now:.3g}" for name, was, is_now in risen]
    return f"; these parts of the reward rose: {', '.join(changes)}" if changes else ""


def _when(rows: Sequence[Row]) -> str:
    first, last = rows[0]["step"], rows[-1]["step"]
    return f"at step {first:.0f}" if first == last else f"in the steps {first:.0f} to {last:.0f}"
