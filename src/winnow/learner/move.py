"""How much of the optimizer's move the weights in use have made: the metrics policy/move_followed and policy/move_noise.

The optimizer adds up exact steps: in float32 masters, or in float32 steps of which 16-bit weights get rounded ones. The
weights in use are 16-bit numbers, so their move since the start of the run is another one. Both moves are compared on a
fixed sample of one element in 64, whose start is saved with the optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

EVERY = 64  # elements of a row of which one is sampled
SHIFT = 25  # columns between the samples of neighbouring rows; odd, so 64 rows sample every column alike

START, MOVED = "start", "moved"  # keys of a parameter's sample in a saved state: its start, and the sum of exact steps


@dataclass(frozen=True, slots=True)
class Move:
    """The sampled moves of one parameter since the start of the run, both of the same shape."""

    exact: Tensor  # float32: of the masters, or the sum of exact steps
    used: Tensor  # float32: of the weights that the model computes with
    elements: int  # of the parameter, on this rank


def sample_shape(shape: torch.Size) -> torch.Size:
    """[R, ceil(C / 64)] for a parameter of R rows of C numbers; a vector has rows of one number, and is sampled whole.

    Every row has equally many samples. So ranks that hold rows of a parameter hold rows of its sample.
    """
    rows, columns = _table(shape)
    return torch.Size([rows, -(-columns // EVERY)])


def sampled(values: Tensor, first_row: int = 0) -> Tensor:
    """A copy of the sample of `values`, in its precision; see `sample_shape`. `first_row` is the number of their first
    row in the whole parameter.
    """
    rows, columns = _table(values.shape)
    start = torch.arange(first_row, first_row + rows, device=values.device) * SHIFT % EVERY
    every = torch.arange(0, columns, EVERY, device=values.device)
    return values.detach().reshape(rows, columns).gather(1, (start[:, None] + every) % columns)


def products(moves: Iterable[Move]) -> Tensor:
    """[3] float64: the squared length of the exact move, its inner product with the used move, and the latter's squared
    length.

    A parameter's sample counts as often as it has elements. So the three estimate those of all elements.
    """
    totals = [
        torch.stack([(a * b).sum(dtype=torch.float64) for a, b in pairs]) * (move.elements / max(1, move.exact.numel()))
        for move in moves
        for pairs in [((move.exact, move.exact), (move.exact, move.used), (move.used, move.used))]
    ]
    return torch.stack(totals).sum(dim=0) if totals else torch.zeros(3, dtype=torch.float64)


def followed(squared: float, inner: float, used: float) -> dict[str, float]:
    """The metrics of three `products`, without prefix; empty before the first move.

    move_followed is the length of the used move along the exact one, as a share of it. move_noise is the squared length
    of the rest of the used move over the squared length of the exact one.
    """
    if not squared > 0:
        return {}
    return {"move_followed": inner / squared, "move_noise": max(0.0, used - inner * inner / squared) / squared}


def _table(shape: torch.Size) -> tuple[int, int]:
    """Rows and columns of a tensor whose first dimension counts rows; a single number is one row."""
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)
