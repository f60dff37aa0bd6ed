"""Two models on the same problems: their difference, a test of its significance, and the problems that changed.

All of it is computed from the rows of two evaluations (folder.py). "other" is the model with which "model" is
compared, such as the initial model of the training.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from winnow.algos.intervals import Interval, PairedTest, of_difference, paired_test
from winnow.core.evaluation import Category, judged_row
from winnow.evaluation.folder import Row, TaskRows, differing_keys, group_by_problem
from winnow.view.text import common_prefix

ENDS, STARTS = "\n>]", "\n<["  # ends and starts of lines and template marks: a frame never ends within a word
MODES = ("sampled", "greedy")
CATEGORIES: dict[Category, str] = {
    "correct": "correct",
    "wrong answer": "right format, wrong answer",
    "wrong format": "wrong format",
    "failed": "verifier failed",
}

OfProblem = Mapping[str, Sequence[Row]]  # the rollouts of each problem, by its id
Scores = Mapping[str, tuple[float, float]]  # of the model and of the other, by the problem's id
LISTED = 5  # keys that a note names


@dataclass(frozen=True, slots=True)
class Frame:
    """The template around the question: the numbers of characters before and after it, equal in all prompts."""

    before: int = 0
    after: int = 0

    @classmethod
    def of(cls, prompts: Sequence[str]) -> Self:
        """The frame of the prompts. It is empty without two different ones, which separate template and question."""
        different = list(dict.fromkeys(prompts))
        if len(different) < 2:
            return cls()
        same = common_prefix(different)
        before = max(same.rfind(end) for end in ENDS) + 1
        same = common_prefix([prompt[before:][::-1] for prompt in different])[::-1]
        starts = [at for start in STARTS if (at := same.find(start)) >= 0]
        return cls(before, len(same) - min(starts) if starts else 0)

    def question(self, prompt: str) -> str:
        """The question of a prompt; the whole prompt if that is empty."""
        return prompt[self.before : len(prompt) - self.after].strip() or prompt


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


def compare_tasks(tasks: Sequence[TaskRows], others: Sequence[TaskRows]) -> tuple[list[Comparison], list[str]]:
    """For each task, one comparison of the sampled answers and one of the greedy answers, if both models have them; and
    notes on what cannot be compared. The seed of the test's permutations is that of the first model.
    """
    by_name, comparisons, notes = {other.name: other for other in others}, list[Comparison](), list[str]()
    for one in tasks:
        other = by_name.get(one.name)
        if other is None:
            notes.append(f"{one.name} was not evaluated with the other model: it is not compared")
            continue
        models, frame = Models(other.model, one.model), Frame.of([row["prompt"] for row in one.rows])
        for mode in MODES:
            mine, theirs = group_by_problem(one.rows, mode), group_by_problem(other.rows, mode)
            if not mine or not theirs:
                continue
            scores = {id: _scores(mine[id], theirs[id]) for id in mine if id in theirs}
            both = {id: pair for id, pair in scores.items() if pair is not None}
            if both:
                comparisons.append(_compared(one.name, models, mode, mine, theirs, both, frame, one.seed))
            else:
                notes.append(f"{one.name}: the two models have no problem with a verdict of accuracy_{mode} in common")
        alone = group_by_problem(one.rows, MODES[0]).keys() ^ group_by_problem(other.rows, MODES[0]).keys()
        if alone:
            notes.append(f"{one.name}: {len(alone):,} problems were sampled from one model alone, and are left out")
    return comparisons, notes


def _compared(
    task: str, models: Models, mode: str, mine: OfProblem, theirs: OfProblem, scores: Scores, frame: Frame, seed: int
) -> Comparison:
    """The comparison on the problems of `scores`, for which both models have a verdict."""
    ordered = sorted(scores.items(), key=lambda item: (item[1][1] - item[1][0], item[0]))
    model, other = np.array(list(scores.values()), dtype=np.float64).T

    def changed(id: str, *, better: bool) -> ChangedProblem:
        first, (of_model, of_other) = mine[id][0], scores[id]
        gold = first["answer"] if isinstance(first["answer"], str) else json.dumps(first["answer"], ensure_ascii=False)
        texts = _first(theirs[id], correct=not better), _first(mine[id], correct=better)
        return ChangedProblem(id, of_other, of_model, frame.question(first["prompt"]), gold, *texts)

    return Comparison(
        task=task,
        models=models,
        metric=f"accuracy_{mode}",
        model=float(model.mean()),
        other=float(other.mean()),
        interval=of_difference(model, other),
        test=paired_test(model, other, seed=seed),
        categories=_categories(*([rows[id] for id in scores] for rows in (mine, theirs))),
        won=tuple(changed(id, better=True) for id, (score, against) in ordered if score > against),
        lost=tuple(changed(id, better=False) for id, (score, against) in reversed(ordered) if score < against),
        problems=len(scores),
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


def settings_notes(task: str, there: dict[str, Any], here: dict[str, Any], folder: Path) -> Iterator[str]:
    """A note if the evaluation in `folder` has other settings of a task, with some of the keys that differ."""
    keys = differing_keys(there["tasks"][task], here["tasks"][task])
    if keys:
        more = " ..." if len(keys) > LISTED else ""
        yield f"{task}: its settings in {folder} differ: {', '.join(keys[:LISTED])}{more}"
