"""What came of one task: every rollout, the metrics, and their intervals over problems."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from winnow.algos.estimators import tied
from winnow.algos.intervals import Interval, over_problems
from winnow.commands.evaluation.questions import asks_as_declared, reward_label
from winnow.config import Config
from winnow.hidden_options import hidden
from winnow.records import FloatArray
from winnow.report.evaluations.rollout_lines import Row, by_problem
from winnow.training.evaluation import named
from winnow.training.evaluation_metrics import (
    Votes,
    greedy_accuracy,
    greedy_metrics,
    maj_at,
    majority_is_known,
    pass_at,
    per_problem,
    sampled_metrics,
    votes,
)
from winnow.training.judged import Category, Judged
from winnow.training.prompts import evaluation_sampling

SAMPLING = ("top_p", "top_k", "min_p")  # of `evaluate`, said where they are not at their defaults


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A model on a task: what was asked, how, and what came of it."""

    name: str  # of the task among those of one evaluation
    config: Config
    rows: tuple[Row, ...]  # one per rollout, as the file has them
    dropped: int  # problems whose prompt is longer than prompt.max_prompt_tokens
    warnings: tuple[str, ...] = ()  # why the numbers may say little of the model

    @cached_property
    def sampled(self) -> Mapping[str, list[Judged]]:
        """The sampled rollouts of each problem, by its id."""
        return by_problem(self.rows, "sampled")

    @cached_property
    def greedy(self) -> Mapping[str, list[Judged]]:
        """The greedy rollout of each problem; empty where none was asked for."""
        return by_problem(self.rows, "greedy")

    @cached_property
    def ballots(self) -> list[Votes]:
        """[problems] the votes of each, in the order of `sampled`."""
        return [votes(rollouts) for rollouts in self.sampled.values()]

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The metrics that a run logs of an evaluation, but for its seconds."""
        late = sum(one.late for problems in (self.sampled, self.greedy) for p in problems.values() for one in p)
        found = {
            **sampled_metrics(list(self.sampled.values()), self._of_samples),
            **greedy_metrics(list(self.greedy.values())),
        }
        return named({**found, "timed_out": float(late)}, None)

    @cached_property
    def values(self) -> dict[str, FloatArray]:
        """{metric: [problems]} in the order of `sampled`; NaN where a problem has too few verdicts."""
        greedy = {"accuracy_greedy": greedy_accuracy([self.greedy[id] for id in self.sampled])} if self.greedy else {}
        return self._of_samples | greedy

    @cached_property
    def intervals(self) -> dict[str, Interval]:
        """95% intervals of the means of `values`, over problems."""
        known = {name: values[~np.isnan(values)] for name, values in self.values.items()}
        return {name: over_problems(values) for name, values in known.items() if len(values)}

    @cached_property
    def pass_at(self) -> dict[int, float]:
        """pass@1, 2, 4, ... up to the rollouts of a problem, over the problems that have that many verdicts."""
        return {k: _mean(pass_at(self.ballots, k)) for k in self._sizes()}

    @cached_property
    def maj_at(self) -> dict[int, float]:
        """maj@1, 2, 4, ... likewise; empty where the reward does not tell wrong answers."""
        if not majority_is_known(self.ballots):
            return {}
        return {k: _mean(maj_at(self.ballots, k)) for k in self._sizes()}

    @property
    def ties(self) -> int:
        """Problems in which the right answer shares the lead with a wrong one when all rollouts vote."""
        return sum(tied(one.right, one.wrong) for one in self.ballots)

    @property
    def categories(self) -> dict[str, Counter[Category]]:
        """Rollouts of each category, by mode."""
        modes = {"sampled": self.sampled, "greedy": self.greedy}
        return {
            mode: Counter(one.category for rollouts in problems.values() for one in rollouts)
            for mode, problems in modes.items()
            if problems
        }

    def asked(self) -> dict[str, Any]:
        """What the numbers are of, as JSON."""
        config, sampling = self.config, evaluation_sampling(self.config)
        return {
            "model": config.model.path,
            "task": config.task.label,
            "task_options": {name: str(value) for name, value in hidden(config.task.options).items()},
            "split": config.evaluate.split,
            "problems": len(self.sampled),
            "dropped": self.dropped,
            "rollouts_per_prompt": config.evaluate.rollouts_per_prompt,
            "greedy": config.evaluate.greedy,
            **config.prompt.model_dump(exclude={"max_prompt_tokens"}),
            "reward": reward_label(config),
            "as_declared": asks_as_declared(config),
            "temperature": sampling.temperature,
            **{name: getattr(sampling, name) for name in SAMPLING},
            "max_new_tokens": sampling.max_new_tokens,
            "engine": config.rollout.engine.label,
            "seed": config.seed,
        }

    @cached_property
    def _of_samples(self) -> dict[str, FloatArray]:
        return per_problem(list(self.sampled.values()), self.ballots, self.config.evaluate.rollouts_per_prompt)

    def _sizes(self) -> list[int]:
        most = max((one.verified for one in self.ballots), default=0)
        return list(itertools.takewhile(lambda k: k <= most, (2**i for i in itertools.count())))


def _mean(values: FloatArray) -> float:
    return float(np.nanmean(values))
