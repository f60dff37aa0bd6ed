"""What differs between the ranks of a run that is computed by several processes alike, in one place.

Today a run is one process, rank 0 of 1, and each function returns what one process gives. Code that writes, stops, sums
or gathers calls these functions already. Every rank has to call `any_rank`, `total` and `gather` equally often: among
several processes each of them waits for all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def rank() -> int:
    """This process's number, from 0."""
    return 0


def count() -> int:
    """How many processes compute the run together."""
    return 1


def is_writer() -> bool:
    """Whether this process writes what a run leaves behind, which is written once."""
    return rank() == 0


def any_rank(flag: bool) -> bool:
    """Whether the flag is up on any rank, so that all of them do the same about it."""
    return flag


def total(number: float) -> float:
    """The sum of every rank's number."""
    return number


def gather(items: Iterable[T]) -> list[T]:
    """The items of every rank, rank after rank."""
    return list(items)
