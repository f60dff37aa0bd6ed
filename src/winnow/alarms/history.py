"""The history that the rules of alarms read: a bounded window of rows of metrics, and statistics over parts of it."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from winnow.metrics import is_step

Row = Mapping[str, float]
T = TypeVar("T")

BLOCK = 10  # steps whose means are compared
MEASURED = "eval/accuracy_sampled"
REWARD, ACCURACY = "reward/mean_of_prompts", "reward/accuracy_of_prompts"  # do not depend on the allocation
EVEN = 0.95  # effective over all prompts of a step, from which on its rollouts count as evenly allocated
EVALUATIONS = 12  # evaluations that are kept, at most
# The metrics that statistics are made of
PROMPTS_READ = ("group/count", "group/effective", "budget/prompts_skipped")
REWARD_READ = (REWARD, "reward/mean", "reward/std", *PROMPTS_READ)
ACCURACY_READ = (ACCURACY, "reward/accuracy")
HELD_OUT_READ = (MEASURED, f"{MEASURED}_sem")
READABLE = ("outcome/unparsable", "outcome/cut", "budget/rollouts")
SURELY = 2.0  # standard errors that are subtracted from an accuracy for its lower bound


@dataclass(frozen=True, slots=True)
class HeldOutAccuracy:
    """Held-out accuracy before a step."""

    step: int
    accuracy: float
    error: float  # its standard error


@dataclass(frozen=True, slots=True)
class Compared:
    """A held-out evaluation with the training steps around it, as many before as after, so that learning during these
    steps favours neither.
    """

    held_out: HeldOutAccuracy
    train: float  # accuracy
    prompts: float  # of the training steps

    @property
    def gap(self) -> float:
        return self.train - self.held_out.accuracy


@dataclass(slots=True)
class Past:
    """Rows of finished steps, oldest first: the newest `reach` in `rows`, and in `first` as many of the first in which
    the policy was trained.
    """

    reach: int
    evaluated_since: int = 0  # earlier evaluations used other problems and are ignored
    rows: list[Row] = field(default_factory=list)
    first: list[Row] = field(default_factory=list)  # the first steps in which the policy was trained
    best: Sequence[Row] = ()  # the block of at most BLOCK successive steps with the highest lower bound of accuracy
    evaluations: list[HeldOutAccuracy] = field(default_factory=list)  # the first, the best and the newest
    compared: list[Compared] = field(default_factory=list)  # the first and the newest

    def add(self, row: Row) -> None:
        """Add one step's row with the evaluation before it; a number that is not finite counts as not measured."""
        row = _by_prompt({name: float(v) for name, v in row.items() if v is not None and math.isfinite(v)})
        if MEASURED in row and row["step"] >= self.evaluated_since:
            evaluation = HeldOutAccuracy(int(row["step"]), row[MEASURED], row.get(f"{MEASURED}_sem", 0.0))
            every = [*self.evaluations, evaluation]
            self.evaluations = _ends(every, max(every, key=lambda one: one.accuracy))
        if is_step(row):
            self.rows = [*self.rows[-self.reach + 1 :], row]
            if len(self.first) < self.reach and not is_held(row):
                self.first.append(row)
            self._keep_best()
            self._compare(int(row["step"]))

    def last(self, count: int) -> Sequence[Row]:
        """The newest `count` rows; none while there are fewer."""
        return self.rows[-count:] if 0 < count <= len(self.rows) else ()

    def _keep_best(self) -> None:
        """Keep the newest block of comparable steps, or all steps while they are fewer, if its lower bound of accuracy
        exceeds that of the best block. While no answer was ever right, the first step stays the best.
        """
        block = [row for row in self.rows[-BLOCK:] if row["step"] >= self.evaluated_since]
        better = accuracy(block) > 0 and _lower_bound(block) > (_lower_bound(self.best) if self.best else -math.inf)
        if block and are_comparable(block) and (better or not self.best):
            self.best = block

    def _compare(self, step: int) -> None:
        """Compare the evaluation that now has as many steps after it as before it."""
        after = BLOCK // 2
        around = [row for row in self.rows[-BLOCK:] if row["step"] > step - BLOCK and not is_held(row)]
        for held_out in self.evaluations[-BLOCK:]:
            if held_out.step + after - 1 == step and (train := accuracy(around)) <= 1:
                self.compared = _ends([*self.compared, Compared(held_out, train, prompts_of(around))])


def _by_prompt(row: dict[str, float]) -> dict[str, float]:
    """The row with `REWARD` and `ACCURACY`, which older logs lack.

    The mean reward over rollouts equals that over prompts if every prompt has equally many rollouts. The accuracy over
    rollouts is close enough to recognise a solved task.
    """
    even = prompts(row) >= EVEN * row.get("group/count", 1.0)
    known = {REWARD: row.get("reward/mean") if even else None, ACCURACY: row.get("reward/accuracy")}
    return {**{name: value for name, value in known.items() if value is not None}, **row}


def _ends(items: list[T], best: T | None = None) -> list[T]:
    """The first and the newest items, and the best one."""
    oldest = 1 + (items[1] is best) if len(items) > EVALUATIONS else None
    return [item for place, item in enumerate(items) if place != oldest]


@dataclass(frozen=True, slots=True)
class Rewards:
    """The rewards of some steps."""

    mean: float
    std: float  # of one reward
    prompts: float  # the number of independent numbers

    @property
    def variance(self) -> float:
        """Upper bound of the variance of `mean`: each prompt counts as one number, as if its rollouts were alike."""
        return self.std * self.std / max(self.prompts, 1.0)


def rewards(rows: Sequence[Row]) -> Rewards:
    """The rewards of all verified rollouts of some steps; NaN where there were none.

    A step is weighted by its effective number of prompts, which is near 1 if one prompt has nearly all rollouts.
    The variance is the sum of that within steps and that between steps: the variance within a step of few prompts may
    be 0 by chance.
    """
    measured = [row for row in rows if REWARD in row and "reward/std" in row]
    weights = [prompts(row) for row in measured]
    center = mean_of(values(measured, REWARD), weights)
    between = mean_of((_square(row[REWARD] - center) for row in measured), weights)
    within = mean_of((_square(row["reward/std"]) for row in measured), weights)
    return Rewards(center, math.sqrt(within + between), sum(weights))


def accuracy(rows: Sequence[Row]) -> float:
    """The accuracy of some steps, each weighted by its effective number of prompts."""
    measured = [row for row in rows if ACCURACY in row]
    return mean_of(values(measured, ACCURACY), [prompts(row) for row in measured])


def _lower_bound(rows: Sequence[Row]) -> float:
    """Lower bound of the accuracy of some steps (Agresti and Coull 1998); NaN where it was not measured.

    Two right and two wrong prompts are added, as a high accuracy of few prompts may be chance.
    """
    count = prompts_of(rows) + 2 * SURELY
    share = (accuracy(rows) * prompts_of(rows) + SURELY) / count
    return share - SURELY * spread_of(share) / math.sqrt(count)


def prompts_of(rows: Iterable[Row]) -> float:
    """The effective number of prompts of some steps: the sum of `prompts`."""
    return sum(map(prompts, rows))


def prompts(row: Row) -> float:
    """The effective number of prompts of a step, at least 1: the number of prompts whose mean would be as noisy if all
    had equally many rollouts.
    """
    return max(row.get("group/effective", row.get("group/count", 1.0)), 1.0)


def errors(evaluations: Sequence[HeldOutAccuracy]) -> list[float]:
    """The standard error of each evaluation; at least that of the evaluations' mean accuracy with as many problems.

    The measured error is 0 if a few problems all have the same result. The number of problems is derived from the
    evaluations with an error above 0; NaN where none has one.
    """
    spread = spread_of(mean_of(one.accuracy for one in evaluations))
    pairs = [(one.error, spread_of(one.accuracy)) for one in evaluations]
    each = max((error / own for error, own in pairs if error > 0 and own > 0), default=math.nan)  # 1 / sqrt(problems)
    return [max(each * spread, one.error) for one in evaluations]


def spread_of(chance: float) -> float:
    """The standard deviation of a Bernoulli variable that is 1 with this probability."""
    return math.sqrt(max(chance * (1 - chance), 0.0))


def are_comparable(rows: Sequence[Row]) -> bool:
    """Whether the mean rewards of these steps are over all their prompts, each with the same weight.

    They are not if an allocator gave a prompt no rollout, or if an older log has an uneven allocation.
    """
    skipped = any(row.get("budget/prompts_skipped") for row in rows)
    return not skipped and all(REWARD in row for row in rows if "reward/mean" in row)


def is_held(row: Row) -> bool:
    """Whether a step trained the value model alone (critic.pretraining_steps)."""
    idle = row.get("budget/updates", 0.0) == 0 and row.get("select/trained", 0.0) == 0
    return idle and "critic/updates" in row and "policy/learning_rate" not in row


def values(rows: Iterable[Row], name: str) -> list[float]:
    """The values of a metric, in the rows that have it."""
    return [row[name] for row in rows if name in row]


def mean(rows: Iterable[Row], name: str) -> float:
    """The mean of a metric over the rows that have it; NaN where none does."""
    return mean_of(values(rows, name))


def mean_of(numbers: Iterable[float], weights: Sequence[float] | None = None) -> float:
    """The weighted mean; NaN of no numbers."""
    listed = list(numbers)
    if weights is None:
        return sum(listed) / len(listed) if listed else math.nan
    return sum(map(operator.mul, listed, weights)) / sum(weights) if listed else math.nan


def variance_of_mean(numbers: Sequence[float]) -> float:
    """The variance of the mean of independent numbers, from their sample variance; NaN of fewer than two."""
    count = len(numbers)
    if count < 2:
        return math.nan
    center = sum(numbers) / count
    return sum(_square(number - center) for number in numbers) / (count - 1) / count


def total(rows: Iterable[Row], name: str) -> float:
    return sum(values(rows, name))


def share(rows: Sequence[Row], name: str, of: str) -> float:
    """The ratio of two counts, each summed over the rows; NaN where the second is 0."""
    whole = total(rows, of)
    return total(rows, name) / whole if whole else math.nan


def judged(rows: Iterable[Row]) -> float:
    """The number of rollouts that were not cut while they were sampled, which were all judged."""
    listed = list(rows)
    return total(listed, "budget/rollouts") - total(listed, "outcome/cut")


def share_of_judged(rows: Sequence[Row], name: str) -> float:
    """The ratio of a count of verdicts to `judged`; NaN where that is 0."""
    whole = judged(rows)
    return total(rows, name) / whole if whole else math.nan


def _square(number: float) -> float:
    """The square; infinity where it overflows, for which `**` would raise OverflowError."""
    return number * number
