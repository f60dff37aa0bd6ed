"""The result of one task: every rollout, the metrics, and their intervals over problems; and averages over tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from winnow.algos.intervals import Interval, of_average, over_problems
from winnow.algos.pass_at_k import is_tied
from winnow.config import Config
from winnow.core.evaluation import (
    Category,
    Judged,
    Votes,
    count_votes,
    greedy_accuracy,
    greedy_metrics,
    judged_row,
    maj_at,
    majority_is_known,
    pass_at,
    per_problem,
    sampled_metrics,
    with_prefix,
)
from winnow.core.run import evaluation_sampling
from winnow.evaluation.folder import Row, group_by_problem
from winnow.evaluation.settings import reward_label, uses_task_defaults
from winnow.options import hide_secrets
from winnow.records import FloatArray

SAMPLING = ("top_p", "top_k", "min_p")  # keys of `evaluate`; the report shows them if they are not the defaults
BENCHMARKS = ("math500", "minerva_math", "olympiad_bench", "aime24", "amc23")
AVERAGES = {"3 average": BENCHMARKS[:3], "5 average": BENCHMARKS}


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """A model's result on a task: the settings, and every rollout."""

    name: str  # the task's name, unique in its evaluation
    config: Config  # resolved, with the prompt and the reward of this evaluation
    rows: tuple[Row, ...]  # one per rollout, in the order of the file
    dropped: int  # problems whose prompt is longer than prompt.max_prompt_tokens
    warnings: tuple[str, ...] = ()  # settings that may distort the metrics

    @cached_property
    def sampled(self) -> Mapping[str, list[Judged]]:
        """The sampled rollouts of each problem, by its id."""
        return self._judged("sampled")

    @cached_property
    def greedy(self) -> Mapping[str, list[Judged]]:
        """The greedy rollout of each problem; empty if evaluate.greedy is off."""
        return self._judged("greedy")

    @cached_property
    def ballots(self) -> list[Votes]:
        """[problems] the votes on each problem, in the order of `sampled`."""
        return [count_votes(rollouts) for rollouts in self.sampled.values()]

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The metrics of an evaluation in a run's log, without the seconds."""
        late = sum(one.late for problems in (self.sampled, self.greedy) for p in problems.values() for one in p)
        metrics = {
            **sampled_metrics(list(self.sampled.values()), self._sampled_values),
            **greedy_metrics(list(self.greedy.values())),
        }
        return with_prefix({**metrics, "timed_out": float(late)}, None)

    @cached_property
    def values(self) -> dict[str, FloatArray]:
        """{metric: [problems]} in the order of `sampled`; NaN for a problem with too few verdicts."""
        greedy = {"accuracy_greedy": greedy_accuracy([self.greedy[id] for id in self.sampled])} if self.greedy else {}
        return self._sampled_values | greedy

    @cached_property
    def intervals(self) -> dict[str, Interval]:
        """95% intervals of the means of `values`, over problems."""
        known = {name: values[~np.isnan(values)] for name, values in self.values.items()}
        return {name: over_problems(values) for name, values in known.items() if len(values)}

    @cached_property
    def pass_at(self) -> dict[int, float]:
        """pass@k for k = 1, 2, 4, ... and the rollouts per problem, over the problems with at least k verdicts."""
        return {k: _mean(pass_at(self.ballots, k)) for k in self._sizes()}

    @cached_property
    def maj_at(self) -> dict[int, float]:
        """maj@k for the same k; empty if the reward does not return the answers of wrong rollouts."""
        if not majority_is_known(self.ballots):
            return {}
        return {k: _mean(maj_at(self.ballots, k)) for k in self._sizes()}

    @property
    def ties(self) -> int:
        """Number of problems in which the right answer and a wrong one have equally many votes, the most of all."""
        return sum(is_tied(one.right, one.wrong) for one in self.ballots)

    @property
    def categories(self) -> dict[str, Counter[Category]]:
        """Number of rollouts of each category, by mode."""
        modes = {"sampled": self.sampled, "greedy": self.greedy}
        return {
            mode: Counter(one.category for rollouts in problems.values() for one in rollouts)
            for mode, problems in modes.items()
            if problems
        }

    def settings(self) -> dict[str, Any]:
        """The settings of the evaluation, as JSON."""
        config, sampling = self.config, evaluation_sampling(self.config)
        return {
            "model": config.model.path,
            "task": config.task.label,
            "task_options": {
                name: str(value) for name, value in hide_secrets(config.task.options, member=True).items()
            },
            "split": config.evaluate.split,
            "problems": len(self.sampled),
            "dropped": self.dropped,
            "rollouts_per_prompt": config.evaluate.rollouts_per_prompt,
            "greedy": config.evaluate.greedy,
            **config.prompt.model_dump(exclude={"max_prompt_tokens"}),
            "reward": reward_label(config),
            "as_declared": uses_task_defaults(config),
            "temperature": sampling.temperature,
            **{name: getattr(sampling, name) for name in SAMPLING},
            "max_new_tokens": sampling.max_new_tokens,
            "engine": config.rollout.engine.label,
            "seed": config.seed,
        }

    def _judged(self, mode: str) -> dict[str, list[Judged]]:
        return {id: list(map(judged_row, rows)) for id, rows in group_by_problem(self.rows, mode).items()}

    @cached_property
    def _sampled_values(self) -> dict[str, FloatArray]:
        return per_problem(list(self.sampled.values()), self.ballots, self.config.evaluate.rollouts_per_prompt)

    def _sizes(self) -> list[int]:
        most = max((one.verified for one in self.ballots), default=0)
        whole = self.config.evaluate.rollouts_per_prompt
        return [k for k in sorted({whole, *(2**i for i in range(whole.bit_length()))}) if k <= most]


def _mean(values: FloatArray) -> float:
    return float(np.nanmean(values))


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
