"""Weights in memory that two processes see: one flat buffer per set of parameters, written by one, read by the other.

The memory is a file without a name. Both processes have it open, and the kernel frees it when the last of them has
ended: nothing is ever left in /dev/shm, and the size that a container gives to /dev/shm does not limit it.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

_ALIGNMENT = 64  # bytes; a cache line, and a multiple of the size of every number


@dataclass(frozen=True, slots=True)
class WeightLocation:
    """Where in the buffer a weight lies, and what it is."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int  # byte

    @property
    def end(self) -> int:
        return self.start + math.prod(self.shape) * self.dtype.itemsize


WeightLayout = tuple[WeightLocation, ...]


class SharedWeights:
    """One process's view of the memory behind `file`, a descriptor from `nameless_file`."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def write(self, weights: Mapping[str, Tensor]) -> WeightLayout:
        """Copy weights in, from whatever device they are on; where they now lie."""
        layout = lay_out(weights)
        with torch.no_grad():
            for name, shared in self.read(layout).items():
                shared.copy_(weights[name])
        return layout

    def read(self, layout: WeightLayout) -> dict[str, Tensor]:
        """The weights by name, on the CPU: views of the memory itself, which the next `write` changes."""
        memory = self._map(layout[-1].end if layout else 0)
        return {p.name: memory[p.start : p.end].view(p.dtype).view(p.shape) for p in layout}

    def _map(self, size: int) -> Tensor:
        """At least `size` bytes [size]; mapped once, and again only when they grow."""
        if size > len(self._bytes):
            if os.fstat(self._file).st_size < size:
                os.ftruncate(self._file, size)
            self._bytes = torch.frombuffer(mmap.mmap(self._file, size), dtype=torch.uint8)
        return self._bytes


def lay_out(weights: Mapping[str, Tensor]) -> WeightLayout:
    """One weight after another, each aligned."""
    layout: list[WeightLocation] = []
    for name, weight in weights.items():
        start = -(-layout[-1].end // _ALIGNMENT) * _ALIGNMENT if layout else 0
        layout.append(WeightLocation(name, weight.dtype, tuple(weight.shape), start))
    return tuple(layout)


def nameless_file() -> int:
    """A descriptor of an empty file in memory (where the kernel knows none: a deleted one on disk), for the caller to
    close.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create("winnow-weights")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
