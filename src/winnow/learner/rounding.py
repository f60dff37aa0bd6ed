"""How float32 numbers become bfloat16 weights: rounding at random, and masters at random places of rounding cells.

The rounding cell of a bfloat16 number is the set of float32 numbers that round to it. float32 has 16 more bits, so with
the bits of a positive number read as an integer, the cell of the number v is v ± 2^15. The two edges are ties, and
belong to the neighbour whose last bit is 0. docs/models.md describes why a master in the middle of its cell is a
problem, and what its offset changes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from winnow import seeds
from winnow.seeds import SeedName

BITS = 16  # bits of float32 that bfloat16 lacks
HALF_CELL = 2 ** (BITS - 1)  # in units of float32's last place
PIECE = 2**22  # numbers whose offsets are in memory at once


def stochastically_rounded(values: Tensor, random: torch.Generator) -> Tensor:
    """Round float32 values to bfloat16, up or down at random. The nearer neighbour is proportionally more probable, so
    the mean is the value. Numbers that bfloat16 can represent, infinities and NaN stay unchanged.

    The 16 bits that bfloat16 lacks are a number from 0 to 2^16 - 1 in units of its last place. A uniform random number
    of 16 bits is added, and the sum is truncated.
    """
    bits = values.detach().view(torch.int32)
    noise = torch.randint(0, 2**BITS, bits.shape, dtype=torch.int32, device=bits.device, generator=random)
    rounded = ((bits + noise) & -(2**BITS)).view(torch.float32)
    return torch.where(values.isfinite(), rounded, values).to(torch.bfloat16)


@torch.no_grad()
def grid_bits(values: Tensor) -> int:
    """How many of the last bits of float32 are 0 in every number that `offset_in_cells` may move, at most 16.

    It is 16 for the weights of a checkpoint in bfloat16, 13 in float16, and 0 in float32.
    """
    if values.is_meta:
        return BITS
    used = 0
    for piece in torch.split(values.view(-1), PIECE):
        bits = torch.where(_has_width(piece), piece.view(torch.int32) & (2**BITS - 1), 0)
        used |= int(np.bitwise_or.reduce(bits.numpy(force=True)))
        if used & 1:  # in float32, where the first numbers show it
            return 0
    return (used & -used).bit_length() - 1 if used else BITS


@torch.no_grad()
def offset_in_cells(values: Tensor, *names: SeedName, grid: int, first: int = 0) -> None:
    """Move float32 numbers of a grid to random places between its numbers, in place. They round to the same bfloat16
    numbers as before.

    `grid` is the result of `grid_bits`. With 16, a number moves inside its rounding cell. With fewer, several numbers
    of the grid are in a cell, and a number moves by at most half their distance. A number on the edge of a cell moves
    away from the edge, into the cell that it belongs to; the next cell leaves as much free. So numbers that are evenly
    spread over the grid are evenly spread over the cells.

    The offset is uniform in units of float32's last place, without both ends. At a power of two, the numbers below have
    half the spacing of those above, so the density per value is twice as high below. A small move down then crosses the
    edge twice as often, and each crossing is half as far: the rounded number follows the mean move in both directions.
    An offset that is uniform in value would not have this property.

    Zeros and numbers of at most 2^-126 do not move, as their cells are narrower than any update. Neither do infinities
    and NaN.

    Element i of `values` is element `first` + i of a tensor, and its offset is a function of `names` and of that number
    alone. So it does not depend on the shares that ranks hold, on the device, or on the version of torch.
    """
    if values.is_meta or grid == 0:
        return
    half = 2 ** (grid - 1)
    for number, piece in enumerate(torch.split(values.view(-1), PIECE)):
        words = seeds.words(*names, first=first + number * PIECE, count=piece.numel())
        drawn = (words >> (BITS - grid)).astype(np.int32) - half
        drawn[drawn == -half] = 0  # an end; the offsets from -(half - 1) to half - 1 have the mean 0
        bits, offset = piece.view(torch.int32), torch.from_numpy(drawn).to(piece.device)
        even = (bits >> BITS & 1) == 0  # a tie rounds to the neighbour whose last bit is 0
        inwards = torch.where(even, -offset.abs(), offset.abs())
        offset = torch.where((bits & (2**BITS - 1)) == HALF_CELL, inwards, offset)
        bits.add_(offset * _has_width(piece))


def _has_width(values: Tensor) -> Tensor:
    """Whether a number's rounding cell is wide enough to hold an offset; False for infinities and NaN."""
    return (values.abs() > torch.finfo(torch.bfloat16).tiny) & values.isfinite()
