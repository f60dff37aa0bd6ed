"""Averages over the published benchmarks of mathematics, as GVM reports them (Yao et al. 2025, arXiv 2505.02391)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from winnow.algos.intervals import Interval, of_average
from winnow.evaluation.result import EvaluationResult

BENCHMARKS = ("math500", "minerva_math", "olympiad_bench", "aime24", "amc23")
AVERAGES = {"3 average": BENCHMARKS[:3], "5 average": BENCHMARKS}


class Average(NamedTuple):
    """The unweighted mean of several tasks' means."""

    mean: float
    interval: Interval


def averages(results: Sequence[EvaluationResult]) -> dict[str, dict[str, Average]]:
    """{average: {metric: mean and interval}} for each average whose tasks were all evaluated.

    Only metrics that all its tasks have are averaged. A task that was evaluated twice is ambiguous, and ignored.
    """
    labels = [one.config.task.label for one in results]
    by_task = {one.config.task.label: one for one in results if labels.count(one.config.task.label) == 1}
    return {
        name: _average_of([by_task[task] for task in tasks])
        for name, tasks in AVERAGES.items()
        if {*tasks} <= {*by_task}
    }


def _average_of(results: Sequence[EvaluationResult]) -> dict[str, Average]:
    shared = [name for name in results[0].values if all(name in one.intervals for one in results)]
    known = {name: [one.values[name][~np.isnan(one.values[name])] for one in results] for name in shared}
    return {
        name: Average(float(np.mean([v.mean() for v in tasks])), of_average(tasks)) for name, tasks in known.items()
    }
