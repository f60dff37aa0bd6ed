"""Guess a number: the problems of the environment `guess_number`."""

from __future__ import annotations

from winnow.records import Problem
from winnow.registry import register
from winnow.seeds import generator
from winnow.tasks.problems import check_positive, check_split


@register("task")
def guess_number(split: str, *, most: int = 31, size: int = 512, seed: int = 0) -> list[Problem]:
    """`size` games of each split, for the environment `guess_number`: the answer is a number from 1 to `most`.

    All games have one question, so a policy cannot learn an answer by its question: held-out games measure what it does
    with the replies. Raises ConfigError for an unknown split and for a number below 1.
    """
    check_split(split)
    check_positive(most=most, size=size)
    return [
        Problem(
            id=f"guess-{split}-{seed}-{most}-{game}",
            question=f"Guess my number from 1 to {most}.",
            answer=str(int(generator("guess_number", seed, split, game).integers(1, most + 1))),
            task="guess_number",
        )
        for game in range(size)
    ]
