"""Metrics of a step's rewards and groups, from arrays: for steps of winnow, and for the logs of other trainers.

`rewards` is G x [N], of the rollouts with a verdict; a group has an empty array where none has one. `correct` [same] is
None where a log has rewards without verdicts, and the metrics that need it are then absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from winnow.algos.advantage import is_flat
from winnow.records import BoolArray, FloatArray


def reward_metrics(rewards: Sequence[FloatArray], correct: Sequence[BoolArray] | None) -> dict[str, float]:
    """Metrics of rewards over all rollouts, and their means over prompts; none without a rollout."""
    each = [of for of in rewards if len(of)]
    if not each:
        return {}
    every, means = np.concatenate(each), np.array([of.sum() / len(of) for of in each])
    metrics = {
        "reward/mean": float(every.mean()),
        "reward/std": float(every.std()),
        "reward/min": float(every.min()),
        "reward/max": float(every.max()),
        "reward/mean_of_prompts": float(means.mean()),
    }
    if len(means) > 1:  # the rollouts of a prompt are alike, so that prompts are the independent draws
        metrics["reward/mean_of_prompts_sem"] = float(means.std(ddof=1) / np.sqrt(len(means)))
    if correct is not None:
        metrics["reward/accuracy"] = float(np.concatenate(correct).mean())
        metrics["reward/accuracy_of_prompts"] = float(np.mean([of.sum() / len(of) for of in correct if len(of)]))
    return metrics


def mean_parts(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each named part of a reward, over the rollouts that have it. `parts` are those of each rollout."""
    of_each: dict[str, list[float]] = {}
    for of_one in parts:
        for name, value in of_one.items():
            of_each.setdefault(name, []).append(value)
    return {name: float(np.mean(values)) for name, values in of_each.items()}


def group_metrics(rewards: Sequence[FloatArray], correct: Sequence[BoolArray] | None) -> dict[str, float]:
    """The effective number of groups, and how many are flat."""
    sizes = np.array([len(of) for of in rewards], dtype=np.float64)
    flat = [place for place, of in enumerate(rewards) if len(of) and is_flat(of)]
    metrics = {
        "group/effective": float(sizes.sum() ** 2 / max((sizes**2).sum(), 1.0)),
        "group/flat": float(len(flat)),
    }
    if correct is not None:
        metrics["group/all_correct"] = float(sum(bool(correct[place].all()) for place in flat))
        metrics["group/all_wrong"] = float(sum(not correct[place].any() for place in flat))
    return metrics
