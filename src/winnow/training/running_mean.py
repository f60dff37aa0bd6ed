"""Means of per-token numbers that arrive in parts: one per micro-batch, and one per rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from torch import Tensor


@dataclass
class Mean:
    """A running mean and maximum of per-token numbers."""

    total: float = 0.0
    count: int = 0
    largest: float = -np.inf

    def add(self, values: Tensor) -> None:
        if values.numel():
            numbers = values.detach().double().numpy(force=True)
            self.total += float(numbers.sum())
            self.count += numbers.size
            self.largest = float(np.maximum(self.largest, numbers.max()))  # unlike max(), np.maximum keeps NaN

    def merge(self, other: Self) -> None:
        self.total += other.total
        self.count += other.count
        self.largest = float(np.maximum(self.largest, other.largest))

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else np.nan


def merged(of_each: Iterable[Mapping[str, Mean]]) -> dict[str, Mean]:
    """The means by name, over all the mappings."""
    means: dict[str, Mean] = {}
    for of_one in of_each:
        for name, mean in of_one.items():
            means.setdefault(name, Mean()).merge(mean)
    return means
