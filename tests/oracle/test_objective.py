"""The value loss by hand, and against another implementation: plain numbers, one token at a time, no autograd."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from winnow.algos.loss import value_loss
from winnow.algos.objective import Objective, Term
from winnow.records import PolicyOutput
from winnow.testing import micro_batch

# value, before, return -> loss, gradient, clipped; at clip_range 0.2
BY_HAND = [
    (0.5, 0.5, 1.0, 0.125, -0.5, False),  # not moved yet: 0.5 * 0.5^2
    (0.625, 0.5, 1.0, 0.0703125, -0.375, False),  # moved by less than 0.2
    (0.9, 0.5, 1.0, 0.045, 0.0, True),  # moved on by 0.4: as at 0.7, 0.5 * 0.3^2, and no further gain
    (0.1, 0.5, 1.0, 0.405, -0.9, False),  # moved away from the return: all of 0.5 * 0.9^2, pulled back
    (0.9, 0.5, 0.5, 0.08, 0.4, False),  # trained towards its old value: pulled back
    (0.1, 0.5, 0.0, 0.045, 0.0, True),  # the same on the other side: as at 0.3
    (2.0, 0.5, 1.0, 0.5, 1.0, False),  # moved past the return, farther from it than the bound is: pulled back
    (1.1, 0.5, 1.0, 0.045, 0.0, True),  # moved past it, nearer to it than the bound: as at 0.7
]


def batch(before, returns):
    mb = micro_batch([0.0] * len(before))
    return dataclasses.replace(
        mb, values=torch.tensor(before, dtype=torch.float64), returns=torch.tensor(returns, dtype=torch.float64)
    )


def values_of(numbers):
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(("value", "before", "taught", "loss", "slope", "clipped"), BY_HAND)
def test_by_hand(value, before, taught, loss, slope, clipped):
    values = values_of([value])
    found, seen = value_loss(values, batch([before], [taught]), clip_range=0.2)
    (gradient,) = torch.autograd.grad(found.sum(), values)
    assert found.tolist() == pytest.approx([loss])
    assert gradient.tolist() == pytest.approx([slope])
    assert seen["value_clip_fraction"].tolist() == [clipped]
    assert not seen["value_clip_fraction"].requires_grad


def test_without_a_clip_it_is_half_the_squared_error():
    values, mb = values_of([case[0] for case in BY_HAND]), batch([0.5] * 8, [case[2] for case in BY_HAND])
    found, seen = value_loss(values, mb, clip_range=0.0)
    assert found.tolist() == pytest.approx([0.5 * (case[0] - case[2]) ** 2 for case in BY_HAND])
    assert seen["value_clip_fraction"].tolist() == [0.0] * 8
    assert not seen["value_clip_fraction"].requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_within_the_bounds_is_not_rounded_and_not_counted(dtype):
    """V_old + (V - V_old) is not V to the last bit, and where its error is the larger one it would count as clipped."""
    draw = torch.Generator().manual_seed(1)
    before, values, returns = (0.19 * torch.rand(4096, generator=draw, dtype=dtype) for _ in range(3))
    assert not torch.equal(before + (values - before), values)
    mb = dataclasses.replace(micro_batch([0.0]), values=before, returns=returns)
    found, seen = value_loss(values, mb, clip_range=0.2)
    free, _ = value_loss(values, mb, clip_range=0.0)
    assert not seen["value_clip_fraction"].any()
    assert torch.equal(found, free)


# Another implementation ---------------------------------------------------------------------------------------------


def plain_loss(value, before, taught, clip_range):
    """The larger one of two squared errors, halved; of plain numbers."""
    held = before - clip_range if value < before - clip_range else min(value, before + clip_range)
    return max((value - taught) ** 2, (held - taught) ** 2) / 2


def plain_slope(value, before, taught, clip_range):
    """By cases: 0 where the value has moved out of its bounds and the bound's error is the larger, else V - R."""
    moved = value - before
    bound = before + (clip_range if moved > 0 else -clip_range)
    outside = abs(moved) > clip_range
    return 0.0 if outside and abs(bound - taught) > abs(value - taught) else value - taught


def test_a_fixed_batch_against_plain_numbers():
    """40 tokens, of which 30 are trained, through the objective: value and gradient, with weights and coefficient."""
    draw = np.random.default_rng(11)
    before, returns = draw.normal(size=40), 2 * draw.normal(size=40)
    values, weights = before + draw.normal(scale=0.4, size=40), draw.random(40)
    mask = np.arange(40) % 4 != 2
    values[~mask] = np.nan  # what is not trained touches nothing
    trained, weighted = torch.from_numpy(np.flatnonzero(mask)), torch.from_numpy(weights)
    mb = dataclasses.replace(batch(before, returns), trained=trained, weights=weighted)
    term = Term("value", 0.5, lambda out, mb: value_loss(out.values, mb, clip_range=0.3)[0])
    now = values_of(values)
    out = PolicyOutput(logprobs=torch.zeros(40, dtype=torch.float64), values=now)
    total = Objective(lambda out, mb: (torch.zeros_like(out.logprobs), {}), (term,))(out, mb).total
    (gradient,) = torch.autograd.grad(total, now)

    def plain_total(numbers):
        return sum(0.5 * weights[t] * plain_loss(numbers[t], before[t], returns[t], 0.3) for t in np.flatnonzero(mask))

    slopes = [
        0.5 * weights[t] * plain_slope(values[t], before[t], returns[t], 0.3) if mask[t] else 0 for t in range(40)
    ]
    assert total.item() == pytest.approx(plain_total(values), rel=1e-12)
    assert gradient.tolist() == pytest.approx(slopes, rel=1e-12, abs=1e-15)
    assert 3 < sum(slope == 0 for slope in np.array(slopes)[mask]) < 20  # both cases are there
    for t in np.flatnonzero(mask):  # and the cases are the derivative of the loss: central differences
        step = np.where(np.arange(40) == t, 1e-6, 0.0)
        assert (plain_total(values + step) - plain_total(values - step)) / 2e-6 == pytest.approx(slopes[t], abs=1e-7)
