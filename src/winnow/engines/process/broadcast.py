"""Transfer of weights from a trainer to the processes of an engine, tensor by tensor, over a dedicated process group.

The trainer is member 0; the readers are the other members: the engine's process, or the workers that it has started.
The group is not torch's default one, so it can exist beside the group of a run with several ranks. Neither side holds
a second copy of the model: a tensor is sent when it is read from the trainer's mapping, and the reader keeps or drops
it. Between CPUs, and to an engine on the trainer's device, tensors are sent by gloo; from a GPU to other GPUs by NCCL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed
from torch import Tensor

from winnow.errors import EngineError
from winnow.models.tensor_file import DTYPES, WeightsOnRead

Backend = Literal["gloo", "nccl"]

_distributed: Any = torch.distributed  # its classes of process groups have no type annotations

_DTYPES = tuple(DTYPES)
_MOST_DIMENSIONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """The rendezvous of a group's members. It can be pickled."""

    file: str  # in a folder that only this user can access; all members are on one machine
    members: int  # including the trainer
    seconds: float  # limit of a member's wait for the others
    backend: Backend = "gloo"

    def store(self) -> Any:
        """A member's access to the file."""
        return _distributed.FileStore(self.file, self.members)


class SentWeights(WeightsOnRead):
    """Weights by name, each received when this process reads it: on the CPU by gloo, on torch's current GPU by NCCL. It
    can be pickled.

    Each weight can be read once, preferably in the order of the names: skipped weights are kept until they are read.
    """

    names: tuple[str, ...]

    def __init__(self, rendezvous: Rendezvous, number: int, names: Sequence[str], member: int = 1) -> None:
        """The weights of the sender's offer `number`, counted from 1, as read by this `member` of the group."""
        self._rendezvous, self._number, self.names, self._member = rendezvous, number, tuple(names), member

    def by_worker(self, worker: int) -> SentWeights:
        """The same weights, as read by the engine's worker of this number, counted from 0."""
        return SentWeights(self._rendezvous, self._number, self.names, 1 + worker)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.names:
            raise KeyError(name)
        file = self._rendezvous.file
        if file not in _readers:
            _readers[file] = _Reader(self._rendezvous, self._member)
        return _readers[file].read(self._number, self.names, name)

    def finish(self) -> None:
        """Receive the rest if this process has started to read: the trainer must not wait for a failed reader."""
        reader = _readers.get(self._rendezvous.file)
        if reader is not None and reader.number == self._number and reader.group is not None:
            for _ in reader.rest(self.names):
                pass


class WeightSender:
    """The trainer's end of the transfer."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self._rendezvous = rendezvous
        self._store = rendezvous.store()
        self._store.set("started", "")
        self._group: _Group | None = None
        self._number = 0

    def offer(self, names: Sequence[str]) -> SentWeights:
        """The weights to pass to the readers, whose reads then wait for `send`."""
        self._number += 1
        return SentWeights(self._rendezvous, self._number, names)

    def has_readers(self) -> bool:
        """Whether every reader has started to read the weights of the last `offer`."""
        complete: bool = self._store.check([_key(self._number, i) for i in range(1, self._rendezvous.members)])
        return complete

    def send(self, weights: Mapping[str, Tensor]) -> None:
        """Send the offered weights, each when it is read. Raises GroupBroken if a reader has exited or hangs."""
        if self._group is None:
            self._group = _join(self._rendezvous, self._store, 0)
        for weight in weights.values():
            self._group.send(weight.detach())
        self._group.wait()


class GroupBroken(Exception):
    """The other members of the group cannot be reached any more."""


@dataclass
class _Reader:
    """A reader's end of the transfer."""

    rendezvous: Rendezvous
    member: int
    group: _Group | None = None
    number: int = 0  # of the weights being read
    place: int = 0  # index of the next weight to receive
    kept: dict[str, Tensor] = field(default_factory=dict)  # skipped weights

    def __post_init__(self) -> None:
        self.store = self.rendezvous.store()

    def read(self, number: int, names: Sequence[str], name: str) -> Tensor:
        """Receive all weights up to `name`, and return that one. Raises EngineError if it was read before."""
        if number != self.number:
            self._start(number)
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
        """Receive the remaining weights with their names."""
        assert self.group is not None
        while self.place < len(names):
            weight = self.group.receive()
            self.place += 1
            yield names[self.place - 1], weight

    def _start(self, number: int) -> None:
        self.number, self.place = number, 0
        self.kept.clear()
        self.store.set(_key(number, self.member), "")  # before the join, which waits for the trainer's `send`
        if self.group is None:
            self.group = _join(self.rendezvous, self.store, self.member)


_readers: dict[str, _Reader] = {}  # of this process, by the file of the rendezvous


class _Group:
    """A member's end of the process group; all transfers are broadcasts of the trainer."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self._group, self._device = group, device
        self._from_trainer = _distributed.BroadcastOptions()
        self._from_trainer.rootRank = 0

    def send(self, weight: Tensor) -> None:
        """Send a header with type and shape, then the bytes of the weight."""
        shape = [*weight.shape, *[0] * (_MOST_DIMENSIONS - weight.dim())]
        header = [_DTYPES.index(weight.dtype), weight.dim(), *shape]
        self._broadcast(torch.tensor(header, device=self._device))
        self._broadcast(weight.to(self._device).contiguous())

    def receive(self) -> Tensor:
        """The next weight, in new memory."""
        header = torch.empty(2 + _MOST_DIMENSIONS, dtype=torch.int64, device=self._device)
        self._broadcast(header)
        dtype, dimensions, *shape = header.tolist()
        weight = torch.empty(shape[:dimensions], dtype=_DTYPES[dtype], device=self._device)
        self._broadcast(weight)
        return weight

    def wait(self) -> None:
        """Wait until all transfers are complete; before that the weights must not change."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _broadcast(self, tensor: Tensor) -> None:
        if tensor.numel():
            try:
                self._group.broadcast([tensor.view(-1).view(torch.uint8)], self._from_trainer).wait()
            except RuntimeError as error:
                raise GroupBroken(str(error)) from error


def _join(rendezvous: Rendezvous, store: Any, member: int) -> _Group:
    """Join the group; waits until all members have joined, which `has_readers` ensures."""
    limit, common = timedelta(seconds=rendezvous.seconds), _distributed.PrefixStore("group", store)
    try:
        if rendezvous.backend == "nccl":
            options = _distributed.ProcessGroupNCCL.Options()
            options._timeout = limit
            device = torch.device("cuda", torch.cuda.current_device())
            return _Group(_distributed.ProcessGroupNCCL(common, member, rendezvous.members, options), device)
        gloo = _distributed.ProcessGroupGloo
        of_gloo = gloo._Options()
        of_gloo._timeout, of_gloo._devices = limit, [gloo.create_device(hostname="127.0.0.1")]
        return _Group(gloo(common, member, rendezvous.members, of_gloo), torch.device("cpu"))
    except RuntimeError as error:
        raise GroupBroken(str(error)) from error


def _key(number: int, member: int) -> str:
    return f"{number} is read by {member}"
