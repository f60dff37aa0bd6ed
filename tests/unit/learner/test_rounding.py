"""Rounding cells of bfloat16: masters that start anywhere inside them, and rounding at random."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from winnow.learner.rounding import grid_bits, offset_in_cells, stochastically_rounded

ULP = 2**-7  # between 1 and 2, bfloat16's numbers are so far apart
GRIDS = {torch.bfloat16: 16, torch.float16: 13}  # last bits of float32 that the numbers of a format lack


def patterns(dtype: torch.dtype) -> Tensor:
    """All 65,536 numbers of a format with 16 bits, infinities and NaN included, in float32."""
    return torch.from_numpy(np.arange(2**16, dtype=np.uint16).view(np.int16)).view(dtype).float()


def moved(values: Tensor, *names: str | int, **options: int) -> Tensor:
    masters = values.clone()
    offset_in_cells(masters, *(names or ("seed",)), **options)
    return masters


def units(masters: Tensor, values: Tensor) -> Tensor:
    """Offsets in units of float32's last place, away from zero."""
    return masters.view(torch.int32).long() - values.view(torch.int32).long()


@pytest.mark.parametrize("dtype", GRIDS)
@pytest.mark.parametrize("seed", range(3))
def test_every_number_of_sixteen_bits_keeps_its_copy(dtype: torch.dtype, seed: int) -> None:
    values = patterns(dtype)
    masters = moved(values, seed, grid=GRIDS[dtype])
    assert torch.equal(masters.bfloat16().view(torch.int16), values.bfloat16().view(torch.int16)), "to the bit"
    normal = values.isfinite() & (values.abs() > 2.0**-126)
    assert torch.equal(masters.view(torch.int32)[~normal], values.view(torch.int32)[~normal])
    assert (masters != values)[normal].float().mean() > 0.999


@pytest.mark.parametrize("start", [1.0, -1.0, 2.0**-20, 1.5, -3.0 * 2.0**-126])
def test_offsets_are_spread_over_the_whole_cell_and_have_the_mean_zero(start: float) -> None:
    """In units of float32's last place, uniform from -(2^15 - 1) to 2^15 - 1: 65,535 numbers, a variance of
    (65,535^2 - 1) / 12."""
    count = 400_000
    values = torch.full((count,), start)
    offsets = units(moved(values, grid=16), values).double()
    deviation = 65_535 / math.sqrt(12)
    assert abs(offsets.mean()) < 4 * deviation / math.sqrt(count)
    assert offsets.std() == pytest.approx(deviation, rel=0.01)
    assert (offsets.min(), offsets.max()) == pytest.approx((-32_767, 32_767), abs=2)


def share(after: Tensor, before: float) -> float:
    return (after.bfloat16().float() - before).mean().item()


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("start", [1.0, 1.5, 1 + ULP, -1.0])
def test_copies_follow_a_small_move_in_the_mean_also_at_a_power_of_two(start: float, direction: int) -> None:
    """A move of 1/40 of the spacing above. Below 1.0 the spacing is one half: twice as many cross there, half as far.
    The mean of 2,000,000 copies deviates by about 0.5% of the move."""
    move = direction * ULP / 40
    masters = moved(torch.full((2_000_000,), start), grid=16) + move
    assert share(masters, start) == pytest.approx(move, rel=0.03)
    assert share(torch.full((4,), start) + move, start) == 0, "without an offset none moves"


def test_an_even_float16_checkpoint_is_spread_evenly_too() -> None:
    """float16 has 8 numbers in a cell. One of them is an edge, whose weights would all cross at once: a move of 1/40 of
    bfloat16's spacing would move half of an eighth of the copies by one spacing, which is 2.5 times the move."""
    values = (1 + torch.arange(128 * 8) * ULP / 8).repeat(4_000)
    assert grid_bits(values) == 13
    move = ULP / 40
    inside = values[values < 1.9]
    masters = moved(inside, grid=13)
    start = inside.bfloat16().float()
    assert ((masters + move).bfloat16().float() - start).mean().item() == pytest.approx(move, rel=0.02)
    assert ((inside + move).bfloat16().float() - start).mean().item() == pytest.approx(2.5 * move, rel=0.02)


def test_the_grid_is_that_of_the_coarsest_format_that_holds_all_numbers() -> None:
    draw = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    assert [grid_bits(values) for values in (draw, draw.half().float(), draw.bfloat16().float())] == [0, 13, 16]
    special = torch.tensor([0.0, -0.0, torch.inf, torch.nan, 1e-42])
    assert grid_bits(torch.cat([draw.bfloat16().float(), special])) == 16
    assert grid_bits(special) == 16, "none of them moves"
    assert grid_bits(torch.empty(0)) == 16
    assert torch.equal(moved(draw, grid=0), draw)


@pytest.mark.parametrize("cut", [1, 15, 16, 17, 999, 2**22 + 3])
def test_an_offset_depends_on_the_place_in_the_whole_tensor(cut: int) -> None:
    """As the shares of ranks do: a rank draws only its own."""
    values = torch.ones(cut + 1000)
    whole = moved(values, 3, "rounding", "w", grid=16)
    parts = [
        moved(part, 3, "rounding", "w", grid=16, first=first)
        for first, part in ((0, values[:cut]), (cut, values[cut:]))
    ]
    assert torch.equal(torch.cat(parts), whole)
    for names in ((4, "rounding", "w"), (3, "rounding", "v")):
        assert (moved(values, *names, grid=16) == whole).float().mean() < 0.01


def test_rounding_at_random_is_right_on_average_and_else_exact() -> None:
    generator = torch.Generator().manual_seed(0)
    count, share = 100_000, 0.3
    between = torch.full((count,), 1 + share * ULP)
    rounded = stochastically_rounded(between, generator)
    assert rounded.dtype == torch.bfloat16
    assert set(rounded.tolist()) == {1.0, 1 + ULP}
    deviations = (rounded.float().mean().item() - (1 + share * ULP)) / (ULP * math.sqrt(share * (1 - share) / count))
    assert abs(deviations) < 4
    assert set(stochastically_rounded(-between, generator).tolist()) == {-1.0, -1 - ULP}
    exact = torch.tensor([0.0, -0.0, 1.0, -1.0, 1 + ULP, 2.0**-126, torch.inf, -torch.inf])
    assert torch.equal(stochastically_rounded(exact, generator), exact.bfloat16())
    assert stochastically_rounded(torch.tensor([torch.nan]), generator).isnan().all()
