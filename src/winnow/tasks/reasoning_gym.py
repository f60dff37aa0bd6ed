"""Problems made by the generators of the reasoning-gym library."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from winnow.errors import DataError, near_miss
from winnow.records import Problem
from winnow.registry import register
from winnow.rewards.gym import AUDITED, foreign_field, foreign_field_message, refuse_constants
from winnow.tasks.problems import Split, check_positive, check_split, problem, refused, split_of

ITEMS_PER_PROBLEM = 40  # a small split gets a tenth of the items, and a generator may repeat questions


@register("task")
def reasoning_gym(
    split: str,
    *,
    dataset: str,
    size: int = 1024,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    audit: bool = True,
) -> list[Problem]:
    """Problems of one of reasoning-gym's generators. Source: Stojanovski et al. 2025, arXiv 2505.24760.

    `options` are passed to the generator. A hash of the question determines an item's split (80% train, 10%
    validation, 10% test), because in that library neighbouring seeds share nearly all items. Every question occurs
    once. The answer is None if the generator has no single gold. `meta` contains `dataset`, `options` and the
    item itself, `entry`, for the generator's scorer, which the reward `reasoning_gym` wraps.

    Raises DataError without the library. Raises ConfigError for an unknown generator or option, and for a scorer that
    needs objects that JSON cannot represent. It is also raised for options that put text into a field of an item that
    the scorer executes, and for fewer than `size` different problems of the split. With `audit` it is raised for a
    train split if a constant answer scores more than the share of the commonest gold plus 0.05.
    """
    wanted = check_split(split)
    check_positive(size=size)
    settings = dict(options or {})
    generator = _generator(dataset, {"seed": seed, "size": size * ITEMS_PER_PROBLEM, **settings})
    entries = _different(generator, wanted, size)
    if len(entries) < size:
        raise refused(
            "size",
            f"task.size is {size}: {dataset} made {len(entries)} different {split} problems",
            "lower task.size or widen task.options",
        )
    for entry in entries:
        if field := foreign_field(dataset, entry):  # it contains an option, such as a variable's name
            raise refused("options", f"task.options: {foreign_field_message(dataset, field)}", "set other options")
    _check_scorer(generator, dataset, entries[0])
    if audit and wanted == "train":
        refuse_constants(dataset, settings, [_plain(entry) for entry in entries[:AUDITED]])
    return [_problem(entry, {"dataset": dataset, "options": settings}) for entry in entries]


def _generator(dataset: str, options: Mapping[str, Any]) -> Any:
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError as error:
        raise DataError(
            "the task reasoning_gym needs another library",
            remedy="pip install 'winnow-rl[gym]'",
            key="task",
            code="data.not_installed",
        ) from error
    if dataset not in DATASETS:
        raise refused("dataset", f"task.dataset: reasoning-gym has no {dataset!r}", near_miss(dataset, DATASETS))
    try:
        return create_dataset(dataset, **options)
    except (AssertionError, TypeError, ValueError) as error:  # its generators raise these for bad options
        raise refused(
            "options",
            f"task.options: {dataset} refused {dict(options)}: {error}",
            "correct the options of that generator",
        ) from error


def _different(items: Iterable[Mapping[str, Any]], wanted: Split, size: int) -> list[dict[str, Any]]:
    """The first `size` items of a split whose questions differ."""
    by_question: dict[str, dict[str, Any]] = {}
    for item in items:
        question = item["question"]
        if split_of(question) == wanted:
            by_question.setdefault(question, dict(item))
            if len(by_question) == size:
                break
    return list(by_question.values())


def _check_scorer(generator: Any, dataset: str, entry: dict[str, Any]) -> None:
    """Raise ConfigError unless the gold scores 1 after its item was converted to JSON and back, as in `meta`."""
    gold = entry["answer"]
    if gold is not None and generator.score_answer(gold, _plain(entry)) < 1:
        raise refused(
            "dataset",
            f"task.dataset: the scorer of {dataset} needs objects that JSON cannot represent",
            "choose another data set",
        )


def _problem(entry: dict[str, Any], meta: dict[str, Any]) -> Problem:
    return problem("reasoning_gym", entry["question"], entry["answer"], {**meta, "entry": _plain(entry)})


def _plain(entry: dict[str, Any]) -> Any:
    return json.loads(json.dumps(entry))
