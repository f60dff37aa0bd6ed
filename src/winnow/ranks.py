"""The collectives of the ranks of a run, which several processes compute with the same code.

A run of one process is rank 0 of 1, and each function returns that process's data. With several ranks, every rank calls
these functions equally often and in the same order, because each call waits for all. The ranks exchange only data that
winnow made, between processes of one run. Code in learner/ exchanges tensors of the model, by the same process group.

The others would wait for a rank that failed alone. So code that may fail on one rank alone is inside `announced`,
`together` or `from_writer`: the failure is announced, and the others raise RankError at their next collective. Code
that fails on all ranks alike needs none of these (`all_failed`). No tensor is exchanged inside them, because the others
would wait for it and not for the announcement, except where every rank always finishes the collective (`hand_over`).
When a process dies or hangs, the process group ends the others: by a broken connection, or after `timeout_seconds`.
This module imports torch only where there is more than one rank.

Work is divided among the ranks by `deal` and `in_runs`. They need no collective: every rank computes the same result
from data that all ranks have.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np

from winnow.errors import ConfigError, RankError, format_error
from winnow.records import FloatArray, IntArray

T = TypeVar("T")

_ANNOUNCED = "_announced"  # an attribute of an error that was announced to the other ranks
A_SAVE = timedelta(days=1)  # for the slowest disk; a writer that exits is noticed at once
ALL_FAIL_WITHIN = timedelta(seconds=20)  # time for the other ranks to raise as well
# Remedies for ranks that differ
SAME_FILES = "give every rank the same files, and the same versions of winnow and the packages that it needs"
SAME_RESULTS = (
    "make your functions return the same on every rank: draw random numbers only from their argument `rng`, and avoid "
    "everything that depends on the process, such as the order of a set"
)


@dataclass
class Spent:
    """The cost of a rank's collectives."""

    seconds: float = 0.0  # waiting for the slowest rank, and moving bytes
    bytes: dict[str, int] = field(default_factory=dict)  # bytes that this rank sent, by kind

    @contextmanager
    def on(self, what: str, size: int = 0) -> Iterator[None]:
        """Measure a collective in which each rank sends `size` bytes; see `exchanging`."""
        begin = time.perf_counter()
        try:
            with exchanging(what):
                yield
        finally:
            self.seconds += time.perf_counter() - begin
            self.bytes[what] = self.bytes.get(what, 0) + size

    def since(self, before: Spent) -> Spent:
        """The cost since an earlier `copy`."""
        size = {what: count - before.bytes.get(what, 0) for what, count in self.bytes.items()}
        return Spent(self.seconds - before.seconds, size)

    def copy(self) -> Spent:
        """A copy of the cost so far."""
        return Spent(self.seconds, dict(self.bytes))


@dataclass(frozen=True)
class _Failure:
    """Sent by a rank that failed, instead of the data for which the others wait."""

    doing: str
    text: str


@dataclass(frozen=True)
class _Groups:
    """The process groups of this process: one per purpose, so that collectives cannot be confused."""

    control: Any  # gloo, for the collectives of this module; None: the other ranks are simulated
    failing: Any  # gloo, for ranks that have raised
    saving: Any  # gloo, for the thread that saves


@contextmanager
def exchanging(what: str) -> Iterator[None]:
    """Raise RankError where a rank has exited, or was not ready in time."""
    try:
        yield
    except RuntimeError as error:  # torch raises it for every failure of a connection
        if type(error).__name__ == "OutOfMemoryError":  # torch's is a RuntimeError, too
            raise
        raise RankError(
            f"rank {rank()} has lost another rank (exchanging {what}): it has exited, or was not ready within "
            f"ranks.timeout_seconds. torch reported: {str(error).partition(chr(10))[0]}",
            remedy="read the other rank's message for the cause; if it was only slow, raise ranks.timeout_seconds",
            code="rank.lost",
        ) from error


_groups: _Groups | None = None
_assumed = 0  # see `assumed`
spent = Spent()


def rank() -> int:
    """This process's number, from 0."""
    return 0 if _groups is None else _distributed().get_rank()


def count() -> int:
    """The number of processes that compute the run together."""
    return 1 if _groups is None else _distributed().get_world_size()


def local_rank() -> int:
    """This process's number among those of its machine, from 0."""
    return int(os.environ.get("LOCAL_RANK", rank())) if _groups else 0


def local_count() -> int:
    """The number of processes of the run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", count())) if _groups else 1


def launched_here() -> int:
    """The number of processes that a launcher has started on this machine. It is known before they join."""
    return _assumed or int(os.environ.get("LOCAL_WORLD_SIZE", launched_count()))


def is_writer() -> bool:
    """Whether this process writes the files of the run, which are written once."""
    return rank() == 0


def launched_count() -> int:
    """The number of processes that the launcher has started, from the variable that torch's launchers set."""
    return _assumed or int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def assumed(number: int) -> Iterator[None]:
    """A context in which the number of processes on this machine counts as `number`, before they are started.

    A configuration is then resolved and checked as each of them will do it.
    """
    global _assumed
    before, _assumed = _assumed, number
    try:
        yield
    finally:
        _assumed = before


@contextmanager
def joined(*, timeout_seconds: float) -> Iterator[None]:
    """A context in which the processes that a launcher has started together are the ranks of one run.

    A collective that takes longer than `timeout_seconds`, because a rank hangs, raises in the others. Where the
    launcher has already made the process group (Ray Train does), it is used and not destroyed.
    """
    global _groups
    if _groups is not None or launched_count() == 1:
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


@contextmanager
def simulated(number: int) -> Iterator[None]:
    """A context in which this process is rank 0 of `number` ranks, of which the others do not exist.

    Exchanges of tensors do nothing, so it is for tensors without numbers (commands/check/rehearsal.py).
    `gather_from_all` returns this rank's item for each rank. Raises ImportError if torch has no fake process group.
    """
    global _groups
    if number == 1:
        yield
        return
    from torch.testing._internal.distributed import fake_pg

    distributed = _distributed()
    distributed.init_process_group("fake", rank=0, world_size=number, store=fake_pg.FakeStore())
    _groups = _Groups(control=None, failing=None, saving=None)
    try:
        yield
    finally:
        _groups = None
        distributed.destroy_process_group()


def any_rank(flag: bool) -> bool:
    """Whether the flag is true on any rank, so that all of them act the same."""
    return any(gather([flag]))


def gather(items: Iterable[T], *, what: str = "decisions") -> list[T]:
    """The items of every rank, rank after rank."""
    return [item for of_rank in gather_from_all(list(items), what=what) for item in of_rank]


def gather_from_all(item: T, *, what: str = "decisions") -> list[T]:
    """The item of every rank, by rank. Raises RankError if a rank has announced a failure."""
    if _groups is None or _groups.control is None:
        return [item] * count()
    with announced(f"sending {what}"):
        data = pickle.dumps(item, protocol=5)
    items = _exchanged(data, what)
    for number, received in enumerate(items):
        if isinstance(received, _Failure):
            raise RankError(f"rank {number} failed ({received.doing}): {received.text}", code="rank.failed")
    return items


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
    """Announce an exception raised inside: the next collective of the other ranks then raises RankError."""
    try:
        yield
    except Exception as error:
        if not (_groups is None or isinstance(error, RankError) or hasattr(error, _ANNOUNCED)):
            setattr(error, _ANNOUNCED, True)
            try:
                _exchanged(pickle.dumps(_Failure(doing, f"{type(error).__name__}: {format_error(error)}")), "decisions")
            except RankError as lost:  # this rank's error is the cause, and is raised
                error.add_note(f"This error could not be sent to the other ranks: {lost}")
        raise


@contextmanager
def together(doing: str) -> Iterator[None]:
    """Make the code inside succeed on every rank, or raise on every rank.

    The failing rank raises its own error, and the others a RankError with its message.
    """
    with announced(doing):
        yield
    gather_from_all(None)


def from_writer(make: Callable[[], T], *, doing: str) -> T:
    """The writer's result of `make`, on every rank. Where it raises, every rank raises, as with `together`."""
    with announced(doing):
        made = make() if is_writer() else None
    return gather_from_all(made)[0]  # type: ignore[return-value]


def check_same(what: str, digest: Callable[[], str], remedy: str = SAME_FILES) -> None:
    """Raise ConfigError on every rank unless `digest` returns the same on all of them."""
    if count() == 1:
        return
    with announced(f"comparing the {what}"):
        own = digest()
    digests = gather_from_all(own)
    if other := [number for number, received in enumerate(digests) if received != digests[0]]:
        raise ConfigError(f"rank {other[0]} has another {what} than rank 0", remedy=remedy, code="config.ranks_differ")


def all_failed() -> bool:
    """Whether every rank calls this within `ALL_FAIL_WITHIN`: all have raised, and can exchange data to deal with it.

    False where others still work or have exited: then nothing may be exchanged any more.
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


def deal(loads: Sequence[float], parts: int) -> list[list[int]]:
    """Places of `loads` dealt to `parts`, each part in ascending order. The largest load comes first, and each goes to
    the part with the least load so far (Graham 1969, doi 10.1137/0117039, whose bound is 4/3 of the optimum).

    Equal loads go to the parts in turn. A load of 0 goes to the part with the fewest places among those with least
    load.
    """
    dealt: list[list[int]] = [[] for _ in range(parts)]
    held = np.zeros(parts)
    for place in np.argsort(-np.asarray(loads, dtype=np.float64), kind="stable"):
        least = min(range(parts), key=lambda part: (held[part], len(dealt[part])))
        dealt[least].append(int(place))
        held[least] += loads[place]
    return [sorted(part) for part in dealt]


def in_runs(loads: Sequence[float] | IntArray | FloatArray, parts: int) -> list[list[int]]:
    """Places of `loads` divided into `parts` runs of neighbours of about equal load. The middle of a load decides its
    part.

    No part has more than its share plus the largest load. At most `parts` - 1 pairs of neighbours are separated. This
    matters for rollouts of one prompt, as each part with some of them reads the prompt once.
    """
    weights = np.asarray(loads, dtype=np.float64)
    middles = np.cumsum(weights) - weights / 2
    owners = np.minimum((parts * middles / max(weights.sum(), 1e-300)).astype(np.int64), parts - 1)
    return [np.flatnonzero(owners == part).tolist() for part in range(parts)]
