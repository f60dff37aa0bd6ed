"""Weights by name that are produced when they are read: gathered from ranks, received from a process, or merged."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class WeightsOnRead(Mapping[str, "Tensor"]):
    """A mapping whose names cost nothing. Iterating reads no weight, nor does `in`, for which Mapping's default would
    read one.
    """

    @property
    @abstractmethod
    def names(self) -> Collection[str]:
        """Names in the order in which the weights are best read."""

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names
