"""What differs between the ranks of a run that is computed by several processes alike, in one place.

A run of one process is rank 0 of 1, and each function returns what that process gives. Among several, every rank calls
these functions equally often and in the same order: each of them waits for all. What they exchange is data that winnow
made itself, between processes of one run. Tensors of the model are exchanged in learner/, by the same process group.

A rank that fails alone would leave the others waiting. So what one rank may fail at alone stands in `announced`,
`together` or `from_writer`: the failure is announced, and the others raise RankError at their next exchange. What all
do alike needs none of these (`all_failed`). No tensor is exchanged inside them, for the others would wait for it and
not for the announcement; but where every rank finishes the exchange whatever happens (`hand_over`). A process that dies
or hangs ends the others by the process group: a broken connection, or `timeout_seconds`. This module imports torch only
where there is more than one rank.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from winnow.errors import ConfigError, RankError, told

T = TypeVar("T")

_ANNOUNCED = "_announced"  # an attribute of an error that the other ranks have been told
A_SAVE = timedelta(days=1)  # however slow the disk; a writer that ends is noticed at once
ALL_FAIL_WITHIN = timedelta(seconds=20)  # in which the others arrive that have raised, too


@dataclass
class Spent:
    """What a rank has spent on the others."""

    seconds: float = 0.0  # at exchanges: waiting for the slowest rank, and moving bytes
    bytes: dict[str, int] = field(default_factory=dict)  # that this rank gave away, by what they are

    @contextmanager
    def on(self, what: str, size: int = 0) -> Iterator[None]:
        """While this lasts, the ranks exchange `size` bytes of each; see `exchanging`."""
        begin = time.perf_counter()
        try:
            with exchanging(what):
                yield
        finally:
            self.seconds += time.perf_counter() - begin
            self.bytes[what] = self.bytes.get(what, 0) + size

    def since(self, before: Spent) -> Spent:
        """What came after an earlier `copy`."""
        size = {what: count - before.bytes.get(what, 0) for what, count in self.bytes.items()}
        return Spent(self.seconds - before.seconds, size)

    def copy(self) -> Spent:
        """As it is now."""
        return Spent(self.seconds, dict(self.bytes))


@dataclass(frozen=True)
class _Failure:
    """What a rank gives instead of what the others wait for."""

    doing: str
    text: str


@dataclass(frozen=True)
class _Groups:
    """The process groups of this process: one purpose each, so that no two exchanges are ever mistaken."""

    control: Any  # gloo, of what this module exchanges
    failing: Any  # gloo, where ranks meet that have raised
    saving: Any  # gloo, of the thread that saves


@contextmanager
def exchanging(what: str) -> Iterator[None]:
    """Raises RankError where a rank is gone, or has not come in time."""
    try:
        yield
    except RuntimeError as error:  # of torch, whatever has happened to the connection
        if type(error).__name__ == "OutOfMemoryError":  # torch's, which is a RuntimeError, too
            raise
        raise RankError(
            f"rank {rank()} has lost another rank (exchanging {what}): it has exited, or was not ready within "
            f"ranks.timeout_seconds. torch reported: {str(error).partition(chr(10))[0]}",
            remedy="read the other rank's message for the cause; if it was only slow, raise ranks.timeout_seconds",
            code="rank.lost",
        ) from error


_groups: _Groups | None = None
spent = Spent()


def rank() -> int:
    """This process's number, from 0."""
    return 0 if _groups is None else _distributed().get_rank()


def count() -> int:
    """How many processes compute the run together."""
    return 1 if _groups is None else _distributed().get_world_size()


def local_rank() -> int:
    """This process's number among those of its machine, from 0."""
    return int(os.environ.get("LOCAL_RANK", rank())) if _groups else 0


def local_count() -> int:
    """How many processes of the run share this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", count())) if _groups else 1


def launched_here() -> int:
    """How many of the processes that a launcher has started together are on this machine; known before they join."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", asked_for()))


def is_writer() -> bool:
    """Whether this process writes what a run leaves behind, which is written once."""
    return rank() == 0


def asked_for() -> int:
    """How many processes the launcher of this one has started, by the variable that torch's launchers set."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def joined(*, timeout_seconds: float) -> Iterator[None]:
    """While this lasts, the processes that a launcher has started together are the ranks of one run.

    An exchange that takes longer than `timeout_seconds`, as one of them hangs, raises in the others. Where the launcher
    has made the process group already (Ray Train does), it is used and left as it is.
    """
    global _groups
    if _groups is not None or asked_for() == 1:
        yield
        return
    import torch

    distributed, limit = _distributed(), timedelta(seconds=timeout_seconds)
    ours = not distributed.is_initialized()
    if ours:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=limit)
    _groups = _Groups(
        *(distributed.new_group(backend="gloo", timeout=most) for most in (limit, ALL_FAIL_WITHIN, A_SAVE))
    )
    try:
        yield
    finally:
        _groups = None
        if ours:
            distributed.destroy_process_group()


def any_rank(flag: bool) -> bool:
    """Whether the flag is up on any rank, so that all of them do the same about it."""
    return any(gather([flag]))


def total(number: float) -> float:
    """The sum of every rank's number, in the order of the ranks."""
    return sum(gather([number]))


def gather(items: Iterable[T], *, what: str = "decisions") -> list[T]:
    """The items of every rank, rank after rank."""
    return [item for of_rank in each(list(items), what=what) for item in of_rank]


def each(item: T, *, what: str = "decisions") -> list[T]:
    """What every rank gives, by rank. Raises RankError where one of them has announced a failure."""
    if _groups is None:
        return [item]
    with announced(f"sending {what}"):
        data = pickle.dumps(item, protocol=5)
    given = _exchanged(data, what)
    for number, found in enumerate(given):
        if isinstance(found, _Failure):
            raise RankError(f"rank {number} failed ({found.doing}): {found.text}", code="rank.failed")
    return given


def _exchanged(pickled: bytes, what: str) -> list[Any]:
    assert _groups is not None
    import torch

    data = torch.frombuffer(bytearray(pickled), dtype=torch.uint8)
    with spent.on(what, len(data)):
        distributed = _distributed()
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(count())]
        distributed.all_gather(sizes, torch.tensor([len(data)]), group=_groups.control)
        longest = max(int(size) for size in sizes)
        parts = [torch.empty(longest, dtype=torch.uint8) for _ in sizes]
        padded = torch.cat([data, data.new_zeros(longest - len(data))])
        distributed.all_gather(parts, padded, group=_groups.control)
    return [pickle.loads(part[: int(size)].numpy().data) for part, size in zip(parts, sizes, strict=True)]


@contextmanager
def announced(doing: str) -> Iterator[None]:
    """What raises inside is announced: the next exchange of the others, which they come to anyway, raises RankError."""
    try:
        yield
    except Exception as error:
        if not (_groups is None or isinstance(error, RankError) or hasattr(error, _ANNOUNCED)):
            setattr(error, _ANNOUNCED, True)
            try:
                _exchanged(pickle.dumps(_Failure(doing, f"{type(error).__name__}: {told(error)}")), "decisions")
            except RankError as lost:  # this error is the cause, and goes on
                error.add_note(f"The other ranks could not be told: {lost}")
        raise


@contextmanager
def together(doing: str) -> Iterator[None]:
    """What is inside succeeds on every rank, or raises on every rank: the error itself where it occurred, and
    RankError, which tells it, on the others.
    """
    with announced(doing):
        yield
    each(None)


def from_writer(make: Callable[[], T], *, doing: str) -> T:
    """What `make` returns on the writer, on every rank. Where it raises, every rank raises, as `together`."""
    with announced(doing):
        made = make() if is_writer() else None
    return each(made)[0]  # type: ignore[return-value]


SAME_FILES = "give every rank the same files, and the same versions of winnow and the packages that it needs"
SAME_ANSWERS = (
    "let your functions return the same on every rank: draw random numbers from the `rng` that they are given, and let "
    "nothing depend on the process, as the order of a set does"
)


def check_same(what: str, digest: Callable[[], str], remedy: str = SAME_FILES) -> None:
    """Raise ConfigError on every rank unless all know the same of something."""
    if count() == 1:
        return
    with announced(f"comparing the {what}"):
        known = digest()
    found = each(known)
    if other := [number for number, said in enumerate(found) if said != found[0]]:
        raise ConfigError(f"rank {other[0]} has another {what} than rank 0", remedy=remedy, code="config.ranks_differ")


def all_failed() -> bool:
    """Whether every rank has come to this point, within a few seconds: all have raised, and they can go on to agree
    about it. False where others are still at work or gone: nothing may be exchanged any more.
    """
    if _groups is None:
        return True
    try:
        _distributed().barrier(group=_groups.failing)
    except RuntimeError:
        return False
    return True


def saving_group() -> Any:
    """The process group of the threads that save; None in a run of one process."""
    return None if _groups is None else _groups.saving


def _distributed() -> Any:
    import torch.distributed

    return torch.distributed
