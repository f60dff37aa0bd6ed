"""Integer arithmetic, drawn on demand: no download, any number of problems, a gold answer by construction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from winnow.records import Problem
from winnow.registry import register
from winnow.seeds import derive, generator
from winnow.tasks import problems as splits
from winnow.tasks.problems import Split, check_split

Draw = Callable[[np.random.Generator], tuple[str, int]]

MOST_DRAWS = 5_000  # per problem; the rarest text of the smallest level is drawn once in 200


@register("task")
def arithmetic(
    split: str,
    *,
    levels: Sequence[int] = (2, 3, 4),
    size: int = 2048,
    train_size: int | None = None,
    seed: int = 0,
) -> list[Problem]:
    """Sums, differences and products of small integers: `size` of each split, or `train_size` of the train split.

    Levels: 1 one-digit `3 + 4`, 2 two-digit `47 - 38`, 3 three terms `12 + 34 + 56`, 4 products `47 * 8`,
    5 brackets `(12 + 34) * 5`, 6 three-digit `471 + 856`. For every problem a level is drawn, then a text. Levels are
    equally likely, but a small one becomes rarer as its texts are used up.

    A text's split is a hash of the text (80 / 10 / 10), so the splits are disjoint for all seeds and sizes. A shorter
    list is the beginning of a longer one. The answer is the integer as text.

    Raises ConfigError for an unknown split or level, and if the levels have fewer than `size` problems.
    """
    name = "size"
    if split == "train" and train_size is not None:
        name, size = "train_size", train_size
    _check(split, levels, size, name)
    problems: dict[str, Problem] = {}  # by expression
    for item in range(size):
        draws = _draws(generator("arithmetic", seed, split, item), levels)
        candidates = (drawn for drawn in draws if drawn[1] not in problems and split_of(drawn[1]) == split)
        new = next(candidates, None)
        if new is None:
            raise splits.refused(
                name,
                f"task.{name} is {size}: arithmetic levels {list(levels)} have about {item} {split} problems",
                f"lower task.{name} or add a larger level to task.levels",
            )
        problems[new[1]] = _problem(*new)
    return list(problems.values())


def split_of(expression: str) -> Split:
    """The split of a text, by its hash: 80 / 10 / 10."""
    return splits.split_of(expression, pool="arithmetic split")


def _draws(rng: np.random.Generator, levels: Sequence[int]) -> Iterator[tuple[int, str, int]]:
    """Level, expression, and value."""
    for _ in range(MOST_DRAWS):
        level = levels[int(rng.integers(len(levels)))]
        yield level, *LEVELS[level](rng)


def _problem(level: int, expression: str, value: int) -> Problem:
    return Problem(
        id=f"arithmetic-{derive(expression):032x}",
        question=f"What is {expression}?",
        answer=str(value),
        task="arithmetic",
        meta={"level": level, "expression": expression},
    )


def _sum_or_difference(low: int, high: int) -> Draw:
    def draw(rng: np.random.Generator) -> tuple[str, int]:
        a, b = _integers(rng, low, high, 2)
        if rng.integers(2):
            return f"{a} + {b}", a + b
        a, b = max(a, b), min(a, b)
        return f"{a} - {b}", a - b

    return draw


def _three_terms(rng: np.random.Generator) -> tuple[str, int]:
    a, b, c = _integers(rng, 10, 99, 3)
    return f"{a} + {b} + {c}", a + b + c


def _product(rng: np.random.Generator) -> tuple[str, int]:
    (a,), (b,) = _integers(rng, 10, 99, 1), _integers(rng, 2, 9, 1)
    return (f"{a} * {b}" if rng.integers(2) else f"{b} * {a}"), a * b


def _brackets(rng: np.random.Generator) -> tuple[str, int]:
    (a, b), (c,) = _integers(rng, 10, 49, 2), _integers(rng, 2, 9, 1)
    return f"({a} + {b}) * {c}", (a + b) * c


def _integers(rng: np.random.Generator, low: int, high: int, count: int) -> list[int]:
    return [int(rng.integers(low, high + 1)) for _ in range(count)]  # half the time of drawing an array of two


LEVELS: Mapping[int, Draw] = MappingProxyType(
    {
        1: _sum_or_difference(0, 9),
        2: _sum_or_difference(10, 99),
        3: _three_terms,
        4: _product,
        5: _brackets,
        6: _sum_or_difference(100, 999),
    }
)


def _check(split: str, levels: Sequence[int], size: int, name: str) -> None:
    check_split(split)
    unknown = [level for level in levels if level not in LEVELS]
    if unknown or not levels:
        what = f"there is no level {unknown[0]!r}" if unknown else "the list is empty"
        raise splits.refused("levels", f"task.levels: {what}", f"choose from {', '.join(map(str, LEVELS))}")
    splits.check_positive(**{name: size})
