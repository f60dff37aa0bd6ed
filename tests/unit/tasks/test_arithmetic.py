from __future__ import annotations

import pytest

from refusals import refused
from winnow.errors import ConfigError
from winnow.records import Problem
from winnow.tasks.arithmetic import LEVELS, arithmetic, split_of
from winnow.tasks.problems import SPLITS

SMALLEST = {f"{a} + {b}" for a in range(10) for b in range(10)} | {
    f"{a} - {b}" for a in range(10) for b in range(a + 1)
}


def expressions(problems: list[Problem]) -> list[str]:
    return [problem.meta["expression"] for problem in problems]


def test_the_smallest_level_is_dealt_to_disjoint_splits_without_a_rest() -> None:
    dealt = []
    for split in SPLITS:
        mine = {text for text in SMALLEST if split_of(text) == split}
        listed = expressions(arithmetic(split, levels=(1,), size=len(mine)))
        assert set(listed) == mine
        dealt += listed
    assert len(dealt) == len(SMALLEST) == 155
    assert set(dealt) == SMALLEST


def test_splits_are_about_eighty_ten_ten() -> None:
    texts = [f"{a} + {b}" for a in range(10, 100) for b in range(10, 100)]
    shares = [sum(split_of(text) == split for text in texts) / len(texts) for split in SPLITS]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.01)


@pytest.mark.parametrize("level", LEVELS)
def test_the_answer_is_the_value_of_the_text(level: int) -> None:
    for problem in arithmetic("train", levels=(level,), size=60):
        assert problem.question == f"What is {problem.meta['expression']}?"
        assert problem.answer == str(eval(problem.meta["expression"]))
        assert int(problem.answer) >= 0  # no sign for a tiny policy to learn
        assert (problem.task, problem.meta["level"]) == ("arithmetic", level)


def test_ids_are_unique_and_follow_the_text_alone() -> None:
    first = arithmetic("test", levels=(2, 4), size=200, seed=1)
    again = arithmetic("test", levels=(2,), size=600, seed=2)
    assert len({problem.id for problem in first}) == 200
    known = {problem.meta["expression"]: problem.id for problem in first}
    shared = [problem for problem in again if problem.meta["expression"] in known]
    assert shared
    assert all(known[problem.meta["expression"]] == problem.id for problem in shared)


def test_the_same_seed_repeats_and_a_shorter_list_is_a_beginning() -> None:
    assert arithmetic("train", size=80, seed=3) == arithmetic("train", size=80, seed=3)
    assert arithmetic("train", size=20, seed=3) == arithmetic("train", size=80, seed=3)[:20]


def test_neighbouring_seeds_share_nothing() -> None:
    lists = [set(expressions(arithmetic("train", levels=(6,), size=150, seed=seed))) for seed in range(4)]
    assert len(set.union(*lists)) == 4 * 150


def test_levels_weigh_the_same() -> None:
    levels = [problem.meta["level"] for problem in arithmetic("train", size=600)]
    assert {level: levels.count(level) / 600 for level in set(levels)} == pytest.approx(
        dict.fromkeys((2, 3, 4), 1 / 3), abs=0.06
    )


@pytest.mark.parametrize(
    ("split", "options", "key", "named"),
    [
        ("tset", {}, None, "'test'"),
        ("train", {"levels": (2, 7)}, "task.levels", 7),
        ("train", {"levels": ()}, "task.levels", "1, 2, 3, 4, 5, 6"),
        ("train", {"size": 0}, "task.size", 0),
        ("test", {"levels": (1,), "size": 40}, "task.size", 40),
    ],
)
def test_what_cannot_be_dealt_is_refused(
    split: str, options: dict[str, object], key: str | None, named: object
) -> None:
    with refused(ConfigError, named, key=key, code="config.value"):
        arithmetic(split, **options)  # type: ignore[arg-type]


def test_the_train_split_alone_may_have_another_size():
    assert arithmetic("train", size=80, train_size=20) == arithmetic("train", size=20)
    assert arithmetic("test", size=40, train_size=20) == arithmetic("test", size=40)
    with refused(ConfigError, 0, key="task.train_size", code="config.value"):
        arithmetic("train", train_size=0)
