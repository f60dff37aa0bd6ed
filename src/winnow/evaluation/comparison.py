"""Two models on the same problems: their difference, a test of its significance, and the problems that changed.

All of it is computed from the rows of two evaluations (rollout_lines.py). "other" is the model with which "model" is
compared, such as the initial model of the training.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from winnow.algos.intervals import Interval, of_difference
from winnow.algos.paired_test import PairedTest, paired_test
from winnow.evaluation.rollout_lines import Row
from winnow.evaluation.shared_frame import Frame
from winnow.training.judged import Category, judged_row

MODES = ("sampled", "greedy")
CATEGORIES: dict[Category, str] = {
    "correct": "correct",
    "wrong answer": "right format, wrong answer",
    "wrong format": "wrong format",
    "failed": "verifier failed",
}

OfProblem = Mapping[str, Sequence[Row]]  # the rollouts of each problem, by its id


class Models(NamedTuple):
    """The names of the two models."""

    other: str
    model: str


class CategoryChange(NamedTuple):
    """The number of each model's rollouts in a category, and their share of that model's rollouts."""

    category: Category
    other: int
    model: int
    other_share: float
    model_share: float

    @property
    def change(self) -> float:
        """The change of the share."""
        return self.model_share - self.other_share


class ChangedProblem(NamedTuple):
    """A problem on which the two models differ: the score of each, and an answer of each that shows the difference.

    If the model is better, these are the other's first wrong answer and the model's first right one; if it is worse,
    the other's first right answer and the model's first wrong one.
    """

    id: str
    other: float
    model: float
    question: str  # the prompt without the template that all prompts share
    gold: str
    other_answer: str
    model_answer: str


@dataclass(frozen=True)
class Comparison:
    """One metric of a model against another's, on the problems for which both have it."""

    task: str
    models: Models
    metric: str
    model: float  # mean score over those problems
    other: float
    interval: Interval  # of the mean of model - other
    test: PairedTest
    categories: tuple[CategoryChange, ...]  # of the rollouts of those problems; "failed" only if there are any
    won: tuple[ChangedProblem, ...]  # problems with a higher score of the model, largest gain first
    lost: tuple[ChangedProblem, ...]
    problems: int

    @property
    def mode(self) -> str:
        """ "sampled" or "greedy"."""
        return self.metric.removeprefix("accuracy_")

    def numbers(self) -> dict[str, Any]:
        """All fields, without the texts of `won` and `lost`, which are in the files of rollouts."""
        texts = ("question", "gold", "other_answer", "model_answer")
        fields = asdict(self)
        for side in ("won", "lost"):
            changes = [change._asdict() for change in getattr(self, side)]
            fields[side] = [{name: value for name, value in one.items() if name not in texts} for one in changes]
        return fields


def compare_models(
    task: str, model: Sequence[Row], other: Sequence[Row], *, models: Models, seed: int
) -> tuple[list[Comparison], list[str]]:
    """One comparison of the sampled answers and one of the greedy answers, if both models have them; and notes on what
    cannot be compared. `seed` is the seed of the test's permutations.
    """
    comparisons, notes = list[Comparison](), list[str]()
    frame = Frame.of([row["prompt"] for row in model])
    for mode in MODES:
        mine, theirs = _of_mode(model, mode), _of_mode(other, mode)
        if not mine or not theirs:
            continue
        scores = {id: _scores(mine[id], theirs[id]) for id in mine if id in theirs}
        both = {id: pair for id, pair in scores.items() if pair is not None}
        if both:
            comparisons.append(_compared(_Answered(task, models, mode, mine, theirs, frame, both), seed))
        else:
            notes.append(f"{task}: the two models have no problem with a verdict of accuracy_{mode} in common")
    alone = _of_mode(model, MODES[0]).keys() ^ _of_mode(other, MODES[0]).keys()
    if alone:
        notes.append(f"{task}: {len(alone):,} problems were sampled from one model alone, and are left out")
    return comparisons, notes


def _of_mode(rows: Sequence[Row], mode: str) -> dict[str, list[Row]]:
    by_id: dict[str, list[Row]] = {}
    for row in rows:
        if row["mode"] == mode:
            by_id.setdefault(row["prompt_id"], []).append(row)
    return by_id


@dataclass(frozen=True)
class _Answered:
    """A task in one mode: both models' answers, and their scores on the problems for which both have a verdict."""

    task: str
    models: Models
    mode: str
    mine: OfProblem
    theirs: OfProblem
    frame: Frame
    scores: Mapping[str, tuple[float, float]]  # of the model, and of the other

    def changed(self, ids: Sequence[str], *, better: bool) -> tuple[ChangedProblem, ...]:
        return tuple(self._changed(id, better=better) for id in ids)

    def _changed(self, id: str, *, better: bool) -> ChangedProblem:
        first, (model, other) = self.mine[id][0], self.scores[id]
        gold = first["answer"] if isinstance(first["answer"], str) else json.dumps(first["answer"], ensure_ascii=False)
        texts = _first(self.theirs[id], correct=not better), _first(self.mine[id], correct=better)
        return ChangedProblem(id, other, model, self.frame.question(first["prompt"]), gold, *texts)


def _compared(answered: _Answered, seed: int) -> Comparison:
    ordered = sorted(answered.scores.items(), key=lambda item: (item[1][1] - item[1][0], item[0]))
    model, other = np.array(list(answered.scores.values()), dtype=np.float64).T
    return Comparison(
        task=answered.task,
        models=answered.models,
        metric=f"accuracy_{answered.mode}",
        model=float(model.mean()),
        other=float(other.mean()),
        interval=of_difference(model, other),
        test=paired_test(model, other, seed=seed),
        categories=_categories(*([rows[id] for id in answered.scores] for rows in (answered.mine, answered.theirs))),
        won=answered.changed([id for id, (score, against) in ordered if score > against], better=True),
        lost=answered.changed([id for id, (score, against) in reversed(ordered) if score < against], better=False),
        problems=len(answered.scores),
    )


def _scores(mine: Sequence[Row], theirs: Sequence[Row]) -> tuple[float, float] | None:
    """Each model's share of right answers among those with a verdict; None if one of them has no verdict."""
    model, other = ([row["correct"] for row in rows if row["correct"] is not None] for rows in (mine, theirs))
    return (sum(model) / len(model), sum(other) / len(other)) if model and other else None


def _categories(mine: Sequence[Sequence[Row]], theirs: Sequence[Sequence[Row]]) -> tuple[CategoryChange, ...]:
    model, other = (Counter(judged_row(row).category for rows in of_all for row in rows) for of_all in (mine, theirs))
    return tuple(
        CategoryChange(
            category,
            other[category],
            model[category],
            other[category] / other.total(),
            model[category] / model.total(),
        )
        for category in CATEGORIES
        if category != "failed" or other[category] or model[category]
    )


def _first(rows: Sequence[Row], *, correct: bool) -> str:
    """The first right answer, or the first wrong one. It exists, as the scores of the two models differ."""
    text: str = next(row["text"] for row in rows if row["correct"] is correct)
    return text
