"""How fast this processor multiplies matrices in float32 and in bfloat16. It is measured, because a processor without
instructions for bfloat16 computes its products too, many times slower.

Other programs on the machine slow down a product by a factor of ten and more, either some of the products, or all of
them if its threads wait for each other. So the two precisions take turns, and the best time of each counts. No speed is
stated if the times of one precision differ too much, or if the products waited for a core too long.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from winnow.models.load import DTYPES

TYPICAL = 1024  # inputs and outputs of a product if no model is given
MOST_TOKENS, FEWEST_TOKENS = 512, 16  # rows of a product
OPERATIONS = 2e9  # of a product at most, except for the fewest tokens, so that the slowest processor takes seconds
SECONDS = 0.02  # for which a product is repeated in a turn
TURNS, FEWEST_TURNS = 9, 3  # of each precision
MOST_SECONDS = 1.0  # after which no further turn begins, once there are the fewest
STEADY = 1.5  # the largest `unsteadiness` with which a speed is stated
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class Products:
    """The speed of a product [tokens, inputs] x [inputs, outputs] on the CPU."""

    tokens: int
    inputs: int
    outputs: int
    threads: int
    gflops: Mapping[str, float]  # 10^9 operations per second in the best turn, by precision
    unsteadiness: float  # 1 on an idle machine; see `measure_products`

    @property
    def ratio(self) -> float | None:
        """The time of a product in bfloat16 as a share of float32's; None if the machine was busy."""
        return self.gflops["float32"] / self.gflops["bfloat16"] if self.unsteadiness <= STEADY else None

    def __str__(self) -> str:
        shape = f"[{self.tokens}, {self.inputs}] x [{self.inputs}, {self.outputs}] on this CPU"
        where = f"{shape}, {self.threads} thread{'s' * (self.threads > 1)}"
        if self.ratio is None:
            return (
                f"{where}: this machine is busy, so no speed is stated (times differ by a factor of "
                f"{self.unsteadiness:.3g}, and at most {STEADY:g} is allowed)"
            )
        rates = ", ".join(f"{name} {rate:.3g}" for name, rate in self.gflops.items())
        return f"{where}: {rates} GFLOP/s; in bfloat16 they take {self.ratio:.2f} of float32's time"


def measure_products(inputs: int = TYPICAL, outputs: int = TYPICAL) -> Products:
    """The speed of products of a linear layer: in turns, each the best of several, after one that is not counted.

    `unsteadiness` is the largest of three ratios: of the median turn's time to the best one's, in both precisions, and
    of the seconds of all products to the processor time of the thread that waits for them.
    """
    tokens = max(FEWEST_TOKENS, min(MOST_TOKENS, int(OPERATIONS / (2 * inputs * outputs))))
    operations, (seconds, waiting) = 2.0 * tokens * inputs * outputs, _turns(tokens, inputs, outputs)
    gflops = {name: operations / min(of) / 1e9 for name, of in seconds.items()}
    unsteadiness = max(waiting, *(statistics.median(of) / min(of) for of in seconds.values()))
    return Products(tokens, inputs, outputs, torch.get_num_threads(), gflops, unsteadiness)


@torch.inference_mode()
def _turns(tokens: int, inputs: int, outputs: int) -> tuple[Mapping[str, Sequence[float]], float]:
    """The seconds of a product in each turn, by precision, and all seconds per second of this thread's processor time.

    The processor time includes the time in which the thread waits actively for the other threads of a product.
    """
    shapes = (tokens, inputs), (outputs, inputs)
    operands = {name: [torch.ones(shape, dtype=DTYPES[name]) for shape in shapes] for name in PRECISIONS}
    for left, right in operands.values():
        linear(left, right)
    seconds: dict[str, list[float]] = {name: [] for name in PRECISIONS}
    begin, computing = time.perf_counter(), time.thread_time()
    for turn in range(TURNS):
        if turn >= FEWEST_TURNS and time.perf_counter() > begin + MOST_SECONDS:
            break
        for name, (left, right) in operands.items():
            seconds[name].append(_best(left, right))
    elapsed, computing = time.perf_counter() - begin, time.thread_time() - computing
    return seconds, elapsed / max(computing, 1e-9)


def _best(left: Tensor, right: Tensor) -> float:
    """The seconds of the fastest of several products."""
    best, end = float("inf"), time.perf_counter() + SECONDS
    while best == float("inf") or time.perf_counter() < end:
        begin = time.perf_counter()
        linear(left, right)
        best = min(best, time.perf_counter() - begin)
    return max(best, 1e-9)
