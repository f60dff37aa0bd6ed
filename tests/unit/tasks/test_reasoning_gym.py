from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from refusals import refused
from winnow.errors import ConfigError, DataError
from winnow.records import Problem
from winnow.tasks import reasoning_gym as module
from winnow.tasks.problems import SPLITS
from winnow.tasks.reasoning_gym import reasoning_gym


def questions(problems: list[Problem]) -> list[str]:
    return [problem.question for problem in problems]


@pytest.fixture(scope="module")
def gym() -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra winnow-rl[gym]")


@pytest.mark.usefixtures("gym")
def test_reasoning_gym_splits_share_nothing_though_seeds_do() -> None:
    made = {split: reasoning_gym(split, dataset="leg_counting", size=20, seed=42) for split in SPLITS}
    near = {split: reasoning_gym(split, dataset="leg_counting", size=20, seed=43) for split in SPLITS}
    assert all(len({problem.id for problem in problems}) == 20 for problems in made.values())
    assert len(set(questions(made["train"])) & set(questions(near["train"]))) > 10  # why the seed cannot be the split
    for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
        assert not set(questions(made[one])) & set(questions(near[other]))
    assert made["train"] == reasoning_gym("train", dataset="leg_counting", size=20, seed=42)


@pytest.mark.usefixtures("gym")
def test_a_repeated_question_keeps_its_first_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """A larger size then begins with the problems of a smaller one."""
    monkeypatch.setattr(module, "split_of", lambda question: "train")
    items = [{"question": q, "answer": a} for q, a in (("1 + 1", "2"), ("a word", "first"), ("a word", "second"))]
    assert module._different(items, "train", 3) == items[:2]


def test_a_problem_of_reasoning_gym_contains_the_input_of_its_scorer() -> None:
    import reasoning_gym as library

    problem = reasoning_gym("test", dataset="countdown", size=1, options={"min_numbers": 3, "max_numbers": 3})[0]
    meta = json.loads(json.dumps(problem.meta))
    scorer = library.create_dataset(meta["dataset"], **meta["options"])
    assert len(meta["entry"]["metadata"]["numbers"]) == 3
    assert scorer.score_answer(problem.answer, meta["entry"]) == 1.0
    assert scorer.score_answer("0", meta["entry"]) < 1.0


@pytest.mark.usefixtures("gym")
@pytest.mark.parametrize(
    ("options", "key", "named"),
    [
        ({"dataset": "leg_countin"}, "task.dataset", "'leg_counting'"),
        ({"dataset": "leg_counting", "options": {"legs": 2}}, "task.options", "legs"),
        ({"dataset": "leg_counting", "options": {"min_animals": 9, "max_animals": 2}}, "task.options", "max_animals"),
        ({"dataset": "coin_flip", "options": {"min_trials": 3, "max_trials": 3}, "size": 300}, "task.size", 300),
        ({"dataset": "rearc", "size": 1}, "task.dataset", "rearc"),
        ({"dataset": "leg_counting", "size": 0}, "task.size", 0),
    ],
)
def test_reasoning_gym_refuses(options: dict[str, Any], key: str, named: object) -> None:
    with refused(ConfigError, named, key=key, code="config.value"):
        reasoning_gym("train", **options)


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        ("simple_integration", {"symbols": ["x.__class__"]}),
        ("polynomial_multiplication", {"variables": ["x.__class__"], "min_polynomials": 2, "max_polynomials": 2}),
    ],
)
def test_reasoning_gym_refuses_options_that_its_scorer_would_execute(dataset: str, options: dict[str, Any]) -> None:
    with refused(ConfigError, dataset, key="task.options", code="config.value"):
        reasoning_gym("train", dataset=dataset, size=1, options=options)


def test_reasoning_gym_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with refused(DataError, "'winnow-rl[gym]'", key="task", code="data.not_installed"):
        reasoning_gym("train", dataset="leg_counting")
