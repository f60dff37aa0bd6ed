"""How much of the optimizer's move the weights in use have made: policy/move_followed and policy/move_noise.

The optimizer adds up exact steps: in float32 masters, or in float32 steps of which 16-bit weights get rounded ones. The
weights in use are 16-bit numbers, so their move since the start of the run is another one. Both moves are compared on a
fixed sample of one element in 64, whose start is saved with the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.memory.footprint import SAMPLED, sample_shape

SHIFT = 25  # columns between the samples of neighbouring rows; odd, so 64 rows sample every column alike

START, MOVED = "start", "moved"  # keys of a parameter's sample in a saved state: its start, and the sum of exact steps


@dataclass(frozen=True, slots=True)
class Move:
    """The sampled moves of one parameter since the start of the run, both of the same shape."""

    exact: Tensor  # float32: of the masters, or the sum of exact steps
    used: Tensor  # float32: of the weights that the model computes with
    elements: int  # of the parameter, on this rank


def sampled(values: Tensor, first_row: int = 0) -> Tensor:
    """A copy of the sample of `values`, in its precision; see `sample_shape`. `first_row` is the number of their first
    row in the whole parameter.
    """
    rows, picked = sample_shape(values.shape)
    columns = values.numel() // max(1, rows)
    start = torch.arange(first_row, first_row + rows, device=values.device) * SHIFT % SAMPLED
    places = start[:, None] + SAMPLED * torch.arange(picked, device=values.device)
    return values.detach().reshape(rows, columns).gather(1, places % max(1, columns))


def products(moves: Iterable[Move]) -> Tensor:
    """[3] float64: the squared length of the exact move, its inner product with the used move, and the latter's squared
    length.

    A parameter's sample counts as often as it has elements. So the three estimate those of all elements.
    """
    totals = []
    for move in moves:
        exact, used = move.exact.double(), move.used.double()
        sums = torch.stack([(exact * exact).sum(), (exact * used).sum(), (used * used).sum()])
        totals.append(sums * (move.elements / max(1, exact.numel())))
    return torch.stack(totals).sum(dim=0)


def followed(squared: float, inner: float, used: float) -> dict[str, float]:
    """The metrics of three `products`, without prefix; empty before the first move.

    move_followed is the length of the used move along the exact one, as a share of it. move_noise is the squared length
    of the rest of the used move over the squared length of the exact one.
    """
    if not squared > 0:
        return {}
    return {"move_followed": inner / squared, "move_noise": max(0.0, used - inner * inner / squared) / squared}
