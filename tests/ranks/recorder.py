"""Process groups that record what ranks exchange, and what only a device or a race would show.

Every rank test runs over `Recorder`, the default process group, which sends over gloo. Under
TORCH_DISTRIBUTED_DEBUG=DETAIL torch compares the operation and the shapes of all ranks before each exchange. Inside
`watched` two mistakes are refused besides, which gloo forgives:

- a tensor of the host in a group for device tensors: NCCL has no memory of the host
- an operation on a result before `wait`: the exchange may still be writing it

The names of a group's methods follow torch. 2.13 has new ones, and calls the old ones only where a class lacks them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import DebugLevel, ProcessGroupGloo, _create_process_group_wrapper
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pretended_device import Pretended, pretended_device

NAME = "recorder"
CPU = torch.device("cpu")
# method -> the place of its results among its arguments
RESULTS: dict[str, int] = {
    "allreduce": 0,
    "allreduce_coalesced": 0,
    "broadcast": 0,
    "reduce": 0,
    "allgather": 0,
    "gather": 0,
    "scatter": 0,
    "reduce_scatter": 0,
    "alltoall": 0,
    **dict.fromkeys(("_allgather_base", "all_gather_single"), 0),
    **dict.fromkeys(("allgather_into_tensor_coalesced", "all_gather_single_coalesced"), 0),
    **dict.fromkeys(("_reduce_scatter_base", "reduce_scatter_single"), 0),
    **dict.fromkeys(("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"), 0),
    **dict.fromkeys(("alltoall_base", "all_to_all_single"), 0),
}


class ExchangeError(Exception):
    """An exchange that a device would refuse, or whose result depends on a race."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call of a method, by this rank."""

    method: str
    shapes: tuple[tuple[int, ...], ...]  # of all tensors
    dtypes: tuple[torch.dtype, ...]


@dataclass
class Watch:
    """What a rank exchanges inside `watched`."""

    device: Pretended
    exchanges: list[Exchange] = field(default_factory=list)
    pending: dict[int, str] = field(default_factory=dict)  # storage of a result that is not awaited: the method

    def record(self, method: str, tensors: list[Tensor]) -> None:
        """Raises ExchangeError for a tensor of the host."""
        if any(self.device.is_host(tensor) for tensor in tensors):
            raise ExchangeError(f"{method} of a tensor in host memory over a group for device tensors")
        shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        self.exchanges.append(Exchange(method, shapes, tuple(tensor.dtype for tensor in tensors)))

    def begin(self, method: str, results: list[Tensor]) -> None:
        self.pending.update(dict.fromkeys(map(_storage, results), method))

    def end(self, results: list[Tensor]) -> None:
        for result in results:
            self.pending.pop(_storage(result), None)


_watch: Watch | None = None


@contextlib.contextmanager
def watched() -> Iterator[Watch]:
    """Inside this context every operation of this thread is checked; ExchangeError is raised where one is refused."""
    global _watch
    assert _watch is None
    with pretended_device() as device, _Reads():
        _watch = Watch(device)
        try:
            yield _watch
        finally:
            _watch = None


class _Reads(TorchDispatchMode):
    """Raises ExchangeError for an operation on a result that is not awaited."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _watch is not None and _watch.pending and not func.is_view and "c10d" not in func.namespace:
            for leaf in tree_leaves((args, kwargs or {})):
                if isinstance(leaf, Tensor) and (method := _watch.pending.get(_storage(leaf))):
                    raise ExchangeError(f"{func} on a result of {method} before wait")
        return func(*args, **(kwargs or {}))


class Awaited(dist.distributed_c10d.Work):
    """The work of an exchange, which ends it for the watch."""

    def __init__(self, work: Any, results: list[Tensor]) -> None:
        super().__init__()
        self._work, self._results = work, results

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if _watch is not None:
            _watch.end(self._results)  # gloo itself copies some results in `wait`
        done: bool = self._work.wait(timeout)
        return done

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def get_future(self) -> Any:
        return self._work.get_future()

    def result(self) -> list[Tensor]:
        return self._results


class Recorder(ProcessGroup):
    """A group for device tensors, whose exchanges go over another one."""

    def __init__(self, inner: ProcessGroup) -> None:
        super().__init__(inner.rank(), inner.size())
        self._inner, self._name, self._description = inner, "", ""

    @property
    def group_name(self) -> str:
        return self._name

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def getBackendName(self) -> str:
        return NAME

    def barrier(self, *args: Any) -> Any:
        return self._inner.barrier(*args)


def _recorded(method: str, place: int) -> Callable[..., Any]:
    def call(self: Recorder, *args: Any, **kwargs: Any) -> Any:
        results = _tensors(args[place])
        if _watch is not None:
            _watch.record(method, _tensors((args, kwargs)))
        work = getattr(self._inner, method)(*args, **kwargs)
        if _watch is not None:
            _watch.begin(method, results)
        return Awaited(work, results)

    call.__name__ = method
    return call


for _method, _place in RESULTS.items():
    if hasattr(ProcessGroup, _method):
        setattr(Recorder, _method, _recorded(_method, _place))


def _over_gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Recorder:
    """As torch makes a group over gloo, with its checks under DETAIL."""
    backend: Any = ProcessGroupGloo(store, rank, size, timeout=timeout)
    backend._set_sequence_number_for_group()
    if dist.get_debug_level() == DebugLevel.DETAIL:
        backend = _create_process_group_wrapper(
            wrapped_pg=backend, store_prefix=NAME, store=store, rank=rank, world_size=size, timeout=timeout
        )
    inner = ProcessGroup(store, rank, size)
    inner._set_default_backend(ProcessGroup.BackendType.GLOO)
    inner._register_backend(CPU, ProcessGroup.BackendType.GLOO, backend)
    inner._set_group_name(NAME)
    return Recorder(inner)


def install() -> None:
    """Make `Recorder` the default process group, in place of gloo; call it before the ranks are joined."""
    dist.set_debug_level_from_env()  # torch has read it before this process had its variables
    dist.Backend.register_backend(NAME, _over_gloo, devices=["cpu"])
    plain = dist.init_process_group

    def init_process_group(backend: str, **options: Any) -> None:
        assert backend == "gloo"
        plain(NAME, **options)

    dist.init_process_group = init_process_group


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
