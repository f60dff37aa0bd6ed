"""Weights from a trainer to the processes that need them, one tensor after another, over a process group of their own.

The trainer is its member 0, whoever reads the weights are the others: the engine's process, or the workers that it has
started. The group is none of torch's default ones, so it stands beside those of a run of several ranks. Neither side
holds a second copy of the model: a tensor is sent once it has been read from the trainer's mapping, and is the reader's
to keep. Between CPUs, and to an engine on the trainer's own device, tensors go by gloo; from a GPU to others by NCCL.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed
from torch import Tensor

from winnow.errors import EngineError
from winnow.models.weights_on_read import WeightsOnRead

Backend = Literal["gloo", "nccl"]

_distributed: Any = torch.distributed  # whose groups, made by hand, have no types

_DTYPES = (
    *(torch.float32, torch.bfloat16, torch.float16, torch.float64),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
)
_MOST_DIMENSIONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where the members of a group find each other. It pickles."""

    file: str  # in a folder that only this user may enter; all members are on one machine
    members: int  # the trainer included
    seconds: float  # the longest that a member waits for the others
    backend: Backend = "gloo"


class SentWeights(WeightsOnRead):
    """Weights by name, received by the process that reads them, where its torch has its device; it pickles on its way
    to that process. Each is read once, best in the order of the names: one that is passed over is kept until then.
    """

    def __init__(self, meeting: Meeting, number: int, names: Sequence[str], member: int = 1) -> None:
        """The `number`-th that are sent; `member` is who reads them."""
        self._meeting, self._number, self._names, self._member = meeting, number, tuple(names), member

    def by_worker(self, worker: int) -> SentWeights:
        """As they are read by the engine's worker of that number, from 0."""
        return SentWeights(self._meeting, self._number, self._names, 1 + worker)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return _reader(self._meeting, self._member).read(self._number, self._names, name)

    @property
    def names(self) -> Collection[str]:
        return self._names

    def finish(self) -> None:
        """Receive the rest, where this process has begun to: the trainer must not wait for a reader that has failed."""
        reader = _readers.get(self._meeting.file)
        if reader is not None and reader.number == self._number:
            for _ in reader.rest(self._names):
                pass


class WeightSender:
    """The trainer's end."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._store = _store(meeting)
        self._store.set("begun", "")
        self._group: _Group | None = None
        self._number = 0

    def offer(self, names: Sequence[str]) -> SentWeights:
        """What the readers are to be given, who then wait for `send`."""
        self._number += 1
        return SentWeights(self._meeting, self._number, names)

    def is_awaited(self) -> bool:
        """Whether every reader has begun to read what was offered last."""
        there: bool = self._store.check([_key(self._number, i) for i in range(1, self._meeting.members)])
        return there

    def send(self, weights: Mapping[str, Tensor]) -> None:
        """Send what was offered, each weight as it is read. Raises Broken where a reader is gone or hangs."""
        if self._group is None:
            self._group = _joined(self._meeting, self._store, 0)
        for place, weight in enumerate(weights.values()):
            self._group.send(place, weight.detach())
        self._group.wait()


class Broken(Exception):
    """The other members of the group cannot be reached any more."""


@dataclass
class _Reader:
    """This process's end of a group, as one that reads."""

    meeting: Meeting
    member: int
    store: Any
    group: _Group | None = None
    number: int = 0  # of what is being read
    place: int = 0  # of the next to come
    kept: dict[str, Tensor] = field(default_factory=dict)  # passed over

    def read(self, number: int, names: Sequence[str], name: str) -> Tensor:
        """Raises EngineError where it has been read already."""
        if number != self.number:
            self._begin(number)
        if name in self.kept:
            return self.kept.pop(name)
        for arrived, weight in self.rest(names):
            if arrived == name:
                return weight
            self.kept[arrived] = weight
        raise EngineError(
            f"the weight {name!r} was read before",
            remedy="read each weight once: in a second process none is kept",
            code="engine.contract",
        )

    def rest(self, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        assert self.group is not None
        while self.place < len(names):
            weight = self.group.receive(self.place)
            self.place += 1
            yield names[self.place - 1], weight

    def _begin(self, number: int) -> None:
        self.number, self.place = number, 0
        self.kept.clear()
        self.store.set(_key(number, self.member), "")
        if self.group is None:
            self.group = _joined(self.meeting, self.store, self.member)


_readers: dict[str, _Reader] = {}  # of this process, by the file of their meeting


def _reader(meeting: Meeting, member: int) -> _Reader:
    if meeting.file not in _readers:
        _readers[meeting.file] = _Reader(meeting, member, _store(meeting))
    return _readers[meeting.file]


class _Group:
    """A member of a process group; what it sends, the trainer has sent to all."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self._group, self._device = group, device
        self._from_trainer = _distributed.BroadcastOptions()
        self._from_trainer.rootRank = 0

    def send(self, place: int, weight: Tensor) -> None:
        """A line of what comes, and its bytes."""
        shape = [*weight.shape, *[0] * (_MOST_DIMENSIONS - weight.dim())]
        line = [place, _DTYPES.index(weight.dtype), weight.dim(), *shape]
        self._broadcast(torch.tensor(line, device=self._device))
        self._broadcast(weight.to(self._device).contiguous())

    def receive(self, place: int) -> Tensor:
        """The next weight, in memory of its own."""
        line = torch.empty(3 + _MOST_DIMENSIONS, dtype=torch.int64, device=self._device)
        self._broadcast(line)
        sent, dtype, dimensions, *shape = line.tolist()
        if sent != place:
            raise EngineError(
                f"the trainer sent weight {sent} where {place} was next: its mapping changed its order",
                remedy="iterate the weights in the same order every time",
                code="engine.contract",
            )
        weight = torch.empty(shape[:dimensions], dtype=_DTYPES[dtype], device=self._device)
        self._broadcast(weight)
        return weight

    def wait(self) -> None:
        """Until what was sent has left: then the weights may change."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _broadcast(self, tensor: Tensor) -> None:
        if tensor.numel():
            try:
                self._group.broadcast([tensor.view(-1).view(torch.uint8)], self._from_trainer).wait()
            except RuntimeError as error:
                raise Broken(str(error)) from error


def _joined(meeting: Meeting, store: Any, member: int) -> _Group:
    """The group, once all members are there; each is on its way already."""
    limit, common = timedelta(seconds=meeting.seconds), _distributed.PrefixStore("group", store)
    try:
        if meeting.backend == "nccl":
            options = _distributed.ProcessGroupNCCL.Options()
            options._timeout = limit
            device = torch.device("cuda", torch.cuda.current_device())
            return _Group(_distributed.ProcessGroupNCCL(common, member, meeting.members, options), device)
        gloo = _distributed.ProcessGroupGloo
        of_gloo = gloo._Options()
        of_gloo._timeout, of_gloo._devices = limit, [gloo.create_device(hostname="127.0.0.1")]
        return _Group(gloo(common, member, meeting.members, of_gloo), torch.device("cpu"))
    except RuntimeError as error:
        raise Broken(str(error)) from error


def _store(meeting: Meeting) -> Any:
    return _distributed.FileStore(meeting.file, meeting.members)


def _key(number: int, member: int) -> str:
    return f"{number} is read by {member}"
