"""Makes problems: their ids are made from a hash of the question, and every list of problems has unique ids."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Any

from winnow.errors import DataError
from winnow.records import Problem
from winnow.seeds import derive


def problem(task: str, question: str, answer: Any, meta: dict[str, Any]) -> Problem:
    """A problem whose id is a hash of its question: stable when other problems are added, removed or reordered."""
    return Problem(id=f"{task}-{derive(question):032x}", question=question, answer=answer, task=task, meta=meta)


def listed(problems: Iterable[Problem], *, split: str, source: str) -> list[Problem]:
    """The problems of a split with unique ids: a repeated question is numbered `-2`, `-3` ...

    Raises DataError where there is no problem.
    """
    seen: Counter[str] = Counter()
    unique = []
    for one in problems:
        seen[one.id] += 1
        repeat = seen[one.id]
        unique.append(one if repeat == 1 else dataclasses.replace(one, id=f"{one.id}-{repeat}"))
    if not unique:
        raise DataError(
            f"there are no {split} problems in {source}", remedy="name another file, or add problems", code="data.empty"
        )
    return unique
