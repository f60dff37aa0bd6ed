"""What alarms know of the steps behind them: a bounded window of rows of metrics, and numbers over parts of it."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from winnow.metrics import is_step

Row = Mapping[str, float]
T = TypeVar("T")

BLOCK = 10  # steps whose mean is compared with that of others
MEASURED = "eval/accuracy_sampled"
REWARD, ACCURACY = "reward/mean_of_prompts", "reward/accuracy_of_prompts"  # which no allocation moves
EVEN = 0.95  # of a step's prompts: fewer count where some have more rollouts than others
EVALUATIONS = 12  # of which alarms know, beside the first
SURELY = 2.0  # standard errors that are taken from an accuracy to find the best block


@dataclass(frozen=True, slots=True)
class HeldOutAccuracy:
    """Held-out accuracy before a step."""

    step: int
    accuracy: float
    error: float  # its standard error


@dataclass(frozen=True, slots=True)
class Compared:
    """A held-out evaluation beside the training steps around it, so that what is learned meanwhile favours neither."""

    held_out: HeldOutAccuracy
    train: float  # accuracy
    prompts: float  # which it is over

    @property
    def gap(self) -> float:
        return self.train - self.held_out.accuracy


@dataclass(slots=True)
class Past:
    """Rows of finished steps, oldest first and newest last: the newest `reach`, and as many of the first."""

    reach: int
    evaluated_since: int = 0  # earlier evaluations were of other problems, and count for nothing
    rows: list[Row] = field(default_factory=list)
    first: list[Row] = field(default_factory=list)  # the first steps in which the policy learned
    best: Sequence[Row] = ()  # the block of at most BLOCK successive steps that was most surely right
    evaluations: list[HeldOutAccuracy] = field(default_factory=list)  # the first, and the newest
    compared: list[Compared] = field(default_factory=list)  # the first, and the newest

    def add(self, row: Row) -> None:
        """One step's row, with the evaluation before it; a number that is not finite counts as not measured."""
        row = _by_prompt({name: float(v) for name, v in row.items() if v is not None and math.isfinite(v)})
        if MEASURED in row and row["step"] >= self.evaluated_since:
            found = HeldOutAccuracy(int(row["step"]), row[MEASURED], row.get(f"{MEASURED}_sem", 0.0))
            self.evaluations = _ends([*self.evaluations, found])
        if is_step(row):
            self.rows = [*self.rows[-self.reach + 1 :], row]
            if len(self.first) < self.reach and not is_held(row):
                self.first.append(row)
            self._keep_best()
            self._compare(int(row["step"]))

    def last(self, count: int) -> Sequence[Row]:
        """The newest rows; none while there are fewer."""
        return self.rows[-count:] if 0 < count <= len(self.rows) else ()

    def _keep_best(self) -> None:
        """The newest block, or all steps while they are fewer, where it is more surely right than all before; the first
        step where no answer was ever right.
        """
        block = [row for row in self.rows[-BLOCK:] if row["step"] >= self.evaluated_since]
        right = accuracy(block) > 0 and _surely(block) > (_surely(self.best) if self.best else -math.inf)
        if block and are_comparable(block) and (right or not self.best):
            self.best = block

    def _compare(self, step: int) -> None:
        """The evaluation that has now as many steps behind it as before it."""
        behind = BLOCK // 2
        around = [row for row in self.rows[-BLOCK:] if row["step"] > step - BLOCK and not is_held(row)]
        for held_out in self.evaluations[-BLOCK:]:
            if held_out.step + behind - 1 == step and (train := accuracy(around)) <= 1:
                self.compared = _ends([*self.compared, Compared(held_out, train, prompts_of(around))])


def _by_prompt(row: dict[str, float]) -> dict[str, float]:
    """The row with `REWARD` and `ACCURACY`, which older logs lack: a mean reward over rollouts is that over prompts
    where every prompt has as many; an accuracy is near enough to tell a solved task.
    """
    even = prompts(row) >= EVEN * row.get("group/count", 1.0)
    known = {REWARD: row.get("reward/mean") if even else None, ACCURACY: row.get("reward/accuracy")}
    return {**{name: value for name, value in known.items() if value is not None}, **row}


def _ends(found: list[T]) -> list[T]:
    """The first, and the newest."""
    return found if len(found) <= EVALUATIONS else [found[0], *found[2:]]


@dataclass(frozen=True, slots=True)
class Rewards:
    """The rewards of some steps."""

    mean: float
    std: float  # of one reward
    prompts: float  # as many numbers that are independent

    @property
    def variance(self) -> float:
        """Of `mean`, at most: as if a prompt's rollouts were all alike, so that each prompt is one number."""
        return self.std * self.std / max(self.prompts, 1.0)


def rewards(rows: Sequence[Row]) -> Rewards:
    """Of all verified rollouts of some steps; NaN where there were none.

    A step counts as much as it has prompts; where one prompt has nearly all rollouts, that is hardly more than one.
    The variance is that within steps and that between: of a few prompts that are alike by chance, a step's own tells
    nothing.
    """
    measured = [row for row in rows if REWARD in row and "reward/std" in row]
    weights = [prompts(row) for row in measured]
    center = mean_of(values(measured, REWARD), weights)
    between = mean_of((_square(row[REWARD] - center) for row in measured), weights)
    within = mean_of((_square(row["reward/std"]) for row in measured), weights)
    return Rewards(center, math.sqrt(within + between), sum(weights))


def accuracy(rows: Sequence[Row]) -> float:
    """Of some steps, each counting as much as it has prompts."""
    measured = [row for row in rows if ACCURACY in row]
    return mean_of(values(measured, ACCURACY), [prompts(row) for row in measured])


def _surely(rows: Sequence[Row]) -> float:
    """The accuracy that steps have at least (Agresti and Coull 1998); NaN where it was not measured.

    Of few prompts a high accuracy may be luck: two right and two wrong ones are added.
    """
    count = prompts_of(rows) + 2 * SURELY
    share = (accuracy(rows) * prompts_of(rows) + SURELY) / count
    return share - SURELY * spread_of(share) / math.sqrt(count)


def prompts_of(rows: Iterable[Row]) -> float:
    """Of some steps, as many as `prompts` of each."""
    return sum(map(prompts, rows))


def prompts(row: Row) -> float:
    """Of a step, as many as would give as noisy a mean with equally many rollouts each; at least 1."""
    return max(row.get("group/effective", row.get("group/count", 1.0)), 1.0)


def errors(found: Sequence[HeldOutAccuracy]) -> list[float]:
    """The standard error of each evaluation, at least what the number of problems makes of their mean accuracy.

    Of a few problems that come out alike an evaluation's own error is 0. How many there are follows from the others;
    NaN where it follows from none.
    """
    spread = spread_of(mean_of(one.accuracy for one in found))
    known = [one.error / spread_of(one.accuracy) for one in found if one.error > 0 and spread_of(one.accuracy) > 0]
    each = max(known, default=math.nan)  # 1 / sqrt(problems), at most
    return [max(each * spread, one.error) for one in found]


def spread_of(chance: float) -> float:
    """Standard deviation of what is 1 with this chance, else 0."""
    return math.sqrt(max(chance * (1 - chance), 0.0))


def are_comparable(rows: Sequence[Row]) -> bool:
    """Whether the rewards of these steps are of prompts as they come: not where the plan leaves some of them out."""
    skipped = any(row.get("budget/prompts_skipped") for row in rows)
    return not skipped and all(REWARD in row for row in rows if "reward/mean" in row)


def is_held(row: Row) -> bool:
    """Whether a value model alone was to learn in a step (critic.pretraining_steps)."""
    idle = row.get("budget/updates", 0.0) == 0 and row.get("select/trained", 0.0) == 0
    return idle and "critic/updates" in row and "policy/learning_rate" not in row


def values(rows: Iterable[Row], name: str) -> list[float]:
    """A metric of the rows that have it."""
    return [row[name] for row in rows if name in row]


def mean(rows: Iterable[Row], name: str) -> float:
    """NaN where no row has it."""
    return mean_of(values(rows, name))


def mean_of(numbers: Iterable[float], weights: Sequence[float] | None = None) -> float:
    """NaN of none."""
    found = list(numbers)
    if weights is None:
        return sum(found) / len(found) if found else math.nan
    return sum(map(operator.mul, found, weights)) / sum(weights) if found else math.nan


def variance_of_mean(numbers: Sequence[float]) -> float:
    """Of the mean of independent numbers, from how they differ; NaN of fewer than two."""
    count = len(numbers)
    if count < 2:
        return math.nan
    center = sum(numbers) / count
    return sum(_square(number - center) for number in numbers) / (count - 1) / count


def total(rows: Iterable[Row], name: str) -> float:
    return sum(values(rows, name))


def share(rows: Sequence[Row], name: str, of: str) -> float:
    """A count over another, pooled over rows; NaN where there is nothing to count."""
    whole = total(rows, of)
    return total(rows, name) / whole if whole else math.nan


def _square(number: float) -> float:
    """Infinity where that is too large, which `**` refuses."""
    return number * number
