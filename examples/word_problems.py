"""A task from a template grammar: word problems of one to three steps, with as many texts as a run needs.

    winnow train configs/claims/words.toml

Use it as `task = { use = "examples/word_problems.py:word_problems", train_size = 64 }`. The numbers are small, so a
model has to learn which operation a sentence means, and which numbers are irrelevant. `scripts/make_word_policy.py`
makes a policy for it, from the worked solutions in `Problem.meta`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from winnow.errors import ConfigError
from winnow.records import Problem
from winnow.seeds import derive, generator
from winnow.tasks.problems import check_split, split_of

NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Iris", "Jack", "Karl", "Lena")
THINGS = ("apples", "pencils", "stickers", "eggs", "shells", "coins", "books", "cards", "stamps", "marbles")
BOXES = ("boxes", "bags", "packs", "baskets")
AGES = "{a} is {age} years old. "  # an irrelevant number
MOST_DRAWS = 1_000  # per problem


@dataclass(frozen=True)
class Story:
    """A problem's text, the steps of its solution, and the answer."""

    question: str
    steps: tuple[str, ...]
    answer: int


Values = dict[str, int]
Template = tuple[str, Callable[[Values], Sequence[tuple[int, str, int]]]]  # text; steps as (left, sign, right)

TEMPLATES: tuple[Template, ...] = (
    (
        "{a} has {x} {things}. {a} buys {k} {boxes} with {y} {things} each. How many {things} does {a} have now?",
        lambda v: [(v["k"], "*", v["y"]), (v["x"], "+", v["k"] * v["y"])],
    ),
    (
        "{a} had {z} {things} and gave {x} of them to {b}. Then {a} found {y} more. How many {things} does {a} have?",
        lambda v: [(v["z"], "-", v["x"]), (v["z"] - v["x"], "+", v["y"])],
    ),
    (
        "There are {k} {boxes} with {y} {things} each. {b} takes {x} {things} away. How many {things} are left?",
        lambda v: [(v["k"], "*", v["y"]), (v["k"] * v["y"], "-", v["x"])],
    ),
    (
        "{a} has {x} {things}, and {b} has {k} times as many. How many {things} do they have together?",
        lambda v: [(v["x"], "*", v["k"]), (v["x"] * v["k"], "+", v["x"])],
    ),
    (
        "{a} buys {k} {things} for {x} dollars each and pays with {p} dollars. How many dollars does {a} get back?",
        lambda v: [(v["k"], "*", v["x"]), (v["p"], "-", v["k"] * v["x"])],
    ),
    (
        "{a} has {x} {things} and {b} has {y} more than {a}. How many {things} do they have together?",
        lambda v: [(v["x"], "+", v["y"]), (v["x"] + v["y"], "+", v["x"])],
    ),
)
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
}


def word_problems(split: str, *, size: int = 2048, train_size: int | None = None, seed: int = 0) -> list[Problem]:
    """`size` problems of a split, or `train_size` of the train split; a shorter list is the beginning of a longer one.

    The split of a text is a hash of the text, so the splits are disjoint. Raises ConfigError for an unknown split and
    where `size` is below 1.
    """
    check_split(split)
    wanted = train_size if split == "train" and train_size is not None else size
    if wanted < 1:
        raise ConfigError(f"task.size is {wanted}", remedy="set it to 1 or more", key="task.size", code="config.value")
    problems: dict[str, Problem] = {}
    for item in range(wanted):
        rng = generator("word problems", seed, split, item)
        stories = (story(rng) for _ in range(MOST_DRAWS))
        new = next((s for s in stories if s.question not in problems and split_of(s.question) == split), None)
        if new is None:
            raise ConfigError(
                f"task.size: the templates have about {item} {split} problems",
                remedy="lower it",
                key="task.size",
                code="config.value",
            )
        problems[new.question] = Problem(
            id=f"words-{derive(new.question):032x}",
            question=new.question,
            answer=str(new.answer),
            task="word_problems",
            meta={"steps": list(new.steps)},
        )
    return list(problems.values())


def story(rng: np.random.Generator) -> Story:
    """One problem: a template, names, things, and numbers for which no step goes below 0."""
    text, solve = TEMPLATES[int(rng.integers(len(TEMPLATES)))]
    a, b = (NAMES[i] for i in rng.permutation(len(NAMES))[:2])
    values = {name: int(rng.integers(low, high + 1)) for name, low, high in RANGES}
    values["z"] += values["x"]
    values["p"] += values["k"] * values["x"]
    values["y"] += 3 if values["k"] * values["y"] < values["x"] else 0
    words = {"a": a, "b": b, "things": _one_of(THINGS, rng), "boxes": _one_of(BOXES, rng), "age": rng.integers(6, 13)}
    before = AGES if rng.random() < 0.3 else ""
    operations = solve(values)
    steps = tuple(f"{left}{sign}{right}={OPERATIONS[sign](left, right)}" for left, sign, right in operations)
    left, sign, right = operations[-1]
    answer = OPERATIONS[sign](left, right)
    if answer < 0:
        return story(rng)
    return Story((before + text).format(**words, **values), steps, answer)


RANGES = (("x", 2, 12), ("y", 2, 9), ("k", 2, 5), ("z", 1, 20), ("p", 1, 20))


def _one_of(words: Sequence[str], rng: np.random.Generator) -> str:
    return words[int(rng.integers(len(words)))]
