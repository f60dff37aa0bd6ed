"""How fast this processor multiplies matrices in float32 and in bfloat16. It is measured, because a processor without
instructions for bfloat16 computes its products too, many times slower.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn.functional import linear

from winnow.models.load import DTYPES

MOST_TOKENS, FEWEST_TOKENS = 512, 16  # rows of a product
OPERATIONS = 2e9  # of a product at most, except for the fewest tokens, so that the slowest processor takes seconds
SECONDS = 0.05  # for which a product is repeated
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class Products:
    """The speed of a product [tokens, inputs] x [inputs, outputs] on the CPU."""

    tokens: int
    inputs: int
    outputs: int
    threads: int
    gflops: Mapping[str, float]  # 10^9 operations per second, by precision

    @property
    def ratio(self) -> float:
        """The time of a product in bfloat16 as a share of float32's."""
        return self.gflops["float32"] / self.gflops["bfloat16"]


def measure_products(inputs: int, outputs: int) -> Products:
    """The speed of products of a linear layer, each the best of several, after one that is not counted."""
    tokens = max(FEWEST_TOKENS, min(MOST_TOKENS, int(OPERATIONS / (2 * inputs * outputs))))
    operations = 2.0 * tokens * inputs * outputs
    gflops = {name: operations / _seconds(tokens, inputs, outputs, DTYPES[name]) / 1e9 for name in PRECISIONS}
    return Products(tokens, inputs, outputs, torch.get_num_threads(), gflops)


@torch.inference_mode()
def _seconds(tokens: int, inputs: int, outputs: int, dtype: torch.dtype) -> float:
    left, right = torch.ones(tokens, inputs, dtype=dtype), torch.ones(outputs, inputs, dtype=dtype)
    linear(left, right)
    best, end = float("inf"), time.perf_counter() + SECONDS
    while best == float("inf") or time.perf_counter() < end:
        begin = time.perf_counter()
        linear(left, right)
        best = min(best, time.perf_counter() - begin)
    return max(best, 1e-9)
