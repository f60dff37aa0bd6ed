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


class Sampler:
    """Takes the samples of parameters. It keeps the places of each shape, as layers have the same shapes."""

    def __init__(self) -> None:
        self._places: dict[tuple[torch.Size, int], Tensor] = {}

    def __call__(self, values: Tensor, first_row: int = 0) -> Tensor:
        """A copy of the sample of `values`, in its precision; see `sample_shape`. `first_row` is the number of their
        first row in the whole parameter.
        """
        rows, picked = sample_shape(values.shape)
        columns, key = values.numel() // max(1, rows), (values.shape, first_row)
        if key not in self._places:
            begin = torch.arange(first_row, first_row + rows, device=values.device) * SHIFT % SAMPLED
            places = begin[:, None] + SAMPLED * torch.arange(picked, device=values.device)
            self._places[key] = places % max(1, columns)
        return values.detach().reshape(rows, columns).gather(1, self._places[key])


def products(moves: Iterable[Move]) -> Tensor:
    """[3] float64: the squared length of the exact move, its inner product with the used move, and the latter's squared
    length.

    A parameter's sample counts as often as it has elements. So the three estimate those of all elements.
    """
    alike: dict[float, list[Move]] = {}  # by the number of elements that a sampled one counts for: 64, or 1 in a vector
    for move in moves:
        alike.setdefault(move.elements / max(1, move.exact.numel()), []).append(move)
    totals = []
    for each, some in alike.items():
        exact = torch.cat([move.exact.flatten() for move in some])
        used = torch.cat([move.used.flatten() for move in some])
        pairs = ((exact, exact), (exact, used), (used, used))
        totals.append(each * torch.stack([(one * other).sum(dtype=torch.float64) for one, other in pairs]))
    return torch.stack(totals).sum(dim=0)


def followed(squared: float, inner: float, used: float) -> dict[str, float]:
    """The metrics of three `products`, without prefix; empty before the first move.

    move_followed is the length of the used move along the exact one, as a share of it. move_noise is the squared length
    of the rest of the used move over the squared length of the exact one.
    """
    if not squared > 0:
        return {}
    return {"move_followed": inner / squared, "move_noise": max(0.0, used - inner * inner / squared) / squared}
