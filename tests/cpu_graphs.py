"""CUDA graphs on a CPU: what a recorded step does is repeated from its operators, without Python between them.

As on a GPU, a replay reads and writes the memory that the step has used when it was recorded. Numbers that Python had
then are repeated as they were. So a step that depends on Python's state, or on memory at another address, computes
something else. An operation that a recording refuses raises RuntimeError: a read of the device, or memory of the host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pretended_device import pretended_device
from winnow.engines.native import cuda, decoder


class Graph:
    """In place of `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.operations: list[tuple[Callable[..., Any], Any, Any, list[Tensor]]] = []
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        for operator, args, kwargs, results in self.operations:
            again = [leaf for leaf in tree_leaves(operator(*args, **kwargs)) if isinstance(leaf, Tensor)]
            for kept, new in zip(results, again, strict=True):
                if kept.untyped_storage()._cdata != new.untyped_storage()._cdata:  # else a view, or changed in place
                    kept.copy_(new)


class _Record(TorchDispatchMode):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self._graph.operations.append((func, args, kwargs, results))
        return result


@contextlib.contextmanager
def recorded(graph: Graph, **options: Any) -> Iterator[None]:
    """In place of `torch.cuda.graph`."""
    with pretended_device() as seen, _Record(graph):
        yield
    if seen.findings:
        raise RuntimeError(f"operation not permitted while a graph is recorded: {seen.findings[0]}")


class Stream:
    """In place of `torch.cuda.Stream`."""

    def wait_stream(self, other: Stream) -> None:
        """A CPU has one order of operations."""


class _OfDevice:
    """A tensor that reports to be on a device."""

    is_cuda = True

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, places: Any) -> Tensor:
        return self.tensor[places]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)


class DeviceUploads(cuda.Uploads):
    """`Uploads` that copies to fixed addresses, as on a GPU."""

    @property  # type: ignore[override]
    def _memory(self) -> _OfDevice:
        return self._held

    @_memory.setter
    def _memory(self, tensor: Tensor) -> None:
        self._held = _OfDevice(tensor)


def use(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """Replace torch's graphs and streams in this test; the list gets every graph that is made."""
    made: list[Graph] = []

    def graph() -> Graph:
        made.append(Graph())
        return made[-1]

    for name, replacement in {
        "CUDAGraph": graph,
        "graph": recorded,
        "graph_pool_handle": lambda: (0, 0),
        "Stream": Stream,
        "stream": lambda stream: contextlib.nullcontext(),
        "current_stream": lambda device=None: Stream(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, replacement)
    monkeypatch.setattr(decoder, "Uploads", DeviceUploads)
    return made
