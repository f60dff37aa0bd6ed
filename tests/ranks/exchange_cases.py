"""What ranks.py exchanges, seen by each rank. What every rank asserts alike is returned, and asserted by the test."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from winnow import ranks
from winnow.errors import ConfigError, RankError, format_error


def who() -> tuple[Any, ...]:
    return (
        ranks.rank(),
        ranks.count(),
        ranks.local_rank(),
        ranks.local_count(),
        ranks.is_writer(),
        ranks.launched_count(),
    )


def joined_again() -> list[int]:
    """`fit` joins the ranks that have joined already."""
    with ranks.joined(timeout_seconds=1.0):
        inside = ranks.count()
    return [inside, ranks.count(), sum(ranks.gather_from_all(1))]


def gathered(items: list[list[Any]]) -> list[Any]:
    return ranks.gather(iter(items[ranks.rank()]))


def arrays() -> bool:
    """Sizes differ between the ranks, and one has nothing."""
    mine = np.arange(1000 * ranks.rank(), dtype=np.int32)
    found = ranks.gather_from_all(mine)
    found[-1][:1] = 7  # what was received may be changed
    return all(len(array) == 1000 * number for number, array in enumerate(found))


def each_one(scale: int) -> list[Any]:
    return ranks.gather_from_all({"rank": ranks.rank(), "times": scale * ranks.rank()})


def any_of(up: list[bool]) -> bool:
    return ranks.any_rank(up[ranks.rank()])


def totals(numbers: list[float]) -> float:
    return sum(ranks.gather([numbers[ranks.rank()]]))


def by_writer() -> tuple[Any, list[int]]:
    callers = []

    def make() -> str:
        callers.append(ranks.rank())
        return "made"

    return ranks.from_writer(make, doing="making"), callers


def writer_raises() -> tuple[str, str, int]:
    """The ranks go on to exchange."""

    def make() -> None:
        raise ValueError("no room")

    return (*raised(lambda: ranks.from_writer(make, doing="making a folder")), sum(ranks.gather([1])))


def one_raises(which: int) -> tuple[str, str, int]:
    def act() -> None:
        with ranks.together("loading"):
            if ranks.rank() == which:
                raise OSError("no such file")

    return (*raised(act), sum(ranks.gather([1])))


def all_raise() -> tuple[str, str, int]:
    def act() -> None:
        with ranks.together("loading"):
            raise OSError(f"no file {ranks.rank()}")

    return (*raised(act), sum(ranks.gather([1])))


def nested() -> tuple[str, str, int]:
    """A failure that has been announced goes through the blocks around it."""

    def act() -> None:
        with ranks.together("outside"), ranks.together("inside"):
            if ranks.rank() == 1:
                raise OSError("no such file")

    return (*raised(act), sum(ranks.gather([1])))


def announced_to_another_exchange() -> tuple[str, str, int]:
    """The others are at an exchange of another kind when the failure is announced."""

    def act() -> None:
        with ranks.announced("sampling"):
            if ranks.rank() == 1:
                raise MemoryError("out of it")
        ranks.gather([ranks.rank()], what="rollouts")

    return (*raised(act), sum(ranks.gather([1])))


def same(facts: list[str]) -> tuple[str, str, int]:
    return (*raised(lambda: ranks.check_same("configuration", lambda: facts[ranks.rank()])), sum(ranks.gather([1])))


def failed_alike() -> list[bool]:
    return [ranks.all_failed(), ranks.all_failed()]


def failed_alone(which: int) -> bool | None:
    """The others are still at work when one asks; what they would have exchanged is over then."""
    if ranks.rank() == which:
        return ranks.all_failed()
    time.sleep(2.0)
    return None


def spent_on(size: int) -> dict[str, int]:
    """Bytes that this rank gave away, by kind."""
    before = ranks.spent.copy()
    ranks.gather_from_all(np.zeros(size, dtype=np.uint8), what="rollouts")
    ranks.gather_from_all(0)
    sum(ranks.gather([1.0]))
    since = ranks.spent.since(before)
    assert since.seconds > 0
    return since.bytes


def alone_it_costs_nothing() -> Any:
    before = ranks.spent.copy()
    ranks.gather_from_all(np.zeros(9), what="rollouts")
    return ranks.spent.since(before)


def raise_on(which: int) -> int:
    if ranks.rank() == which:
        raise KeyError("a case that fails")
    return int(sum(ranks.gather([1])))


def die_on(which: int) -> None:
    if ranks.rank() == which:
        os._exit(7)
    sum(ranks.gather([1]))


def hang_on(which: int) -> None:
    if ranks.rank() == which:
        time.sleep(3600)


def process() -> int:
    return os.getpid()


def raised(act: Any) -> tuple[str, str]:
    """The kind of error, and what it says."""
    try:
        act()
    except (ConfigError, RankError, OSError, ValueError, MemoryError) as error:
        return type(error).__name__, format_error(error)
    return "", ""
