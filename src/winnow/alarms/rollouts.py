"""Alarms about the length of rollouts: cut off, growing, shrinking."""

from __future__ import annotations

import math
from collections.abc import Sequence

from winnow.alarms.alarm import Evidence
from winnow.alarms.past import BLOCK, Past, Row, mean, mean_of, rewards, values, variance_of_mean
from winnow.config import AlarmsSection

APART = 20  # steps between the ends of the two blocks that are compared
BETTER = 2.0  # standard errors above which a reward has risen


def all_truncated(past: Past, limits: AlarmsSection) -> Evidence | None:
    """Most rollouts are cut off at max_new_tokens."""
    rows = past.last(limits.steps)
    cut = mean(rows, "rollout/truncated")
    if not cut >= limits.truncated_share:
        return None
    return Evidence(f"{cut:.0%} of the rollouts of {len(rows)} steps hit max_new_tokens", {"rollout/truncated": cut})


def length_explosion(past: Past, limits: AlarmsSection) -> Evidence | None:
    """Completions grow by a factor while the reward does not rise."""
    return _length(past, limits, grows=True)


def length_collapse(past: Past, limits: AlarmsSection) -> Evidence | None:
    """Completions shrink by a factor while the reward does not rise."""
    return _length(past, limits, grows=False)


def _length(past: Past, limits: AlarmsSection, *, grows: bool) -> Evidence | None:
    rows = past.last(APART + BLOCK)
    before, now = values(rows[:BLOCK], "rollout/length_mean"), values(rows[-BLOCK:], "rollout/length_mean")
    if len(before) < BLOCK or len(now) < BLOCK:
        return None
    was, is_now = mean_of(before), mean_of(now)
    short, long = (was, is_now) if grows else (is_now, was)
    noise = math.sqrt(variance_of_mean(before) + variance_of_mean(now))
    if long < limits.length_factor * short or long - short <= limits.standard_errors * noise:
        return None
    if _better(rows[:BLOCK], rows[-BLOCK:]):
        return None
    return Evidence(
        f"completions went from {was:.0f} to {is_now:.0f} tokens within {APART} steps, and the reward did not rise",
        {"rollout/length_mean": is_now, "before": was, "rollout/truncated": mean(rows[-BLOCK:], "rollout/truncated")},
    )


def _better(before: Sequence[Row], now: Sequence[Row]) -> bool:
    """Whether the reward rose beyond noise; true where it is not known, as it may have risen."""
    was, is_now = rewards(before), rewards(now)
    return not is_now.mean - was.mean <= BETTER * math.sqrt(was.variance + is_now.variance)
