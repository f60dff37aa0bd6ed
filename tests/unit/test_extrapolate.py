"""The extrapolation of weights, by hand: benchmarks/extrapolate.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from extrapolate import WAYS, likeness, move, path_of, straightness, summary

STEPS = [1, 2, 3, 4]
DIRECTION = torch.tensor([[3.0, 0.0], [0.0, -4.0]])


def test_a_line_of_rank_one_is_continued_exactly():
    path = path_of(torch.stack([step * DIRECTION for step in STEPS]), STEPS)
    assert (path.energy, path.rank_one, path.fit) == pytest.approx((25.0 * 30, 1.0, 1.0))
    for way in ("extrapolated", "straight"):
        torch.testing.assert_close(move(path, way, 10), 10 * DIRECTION)


def test_the_intercept_of_the_line_counts():
    path = path_of(torch.stack([(5.0 + step) * DIRECTION for step in STEPS]), STEPS)
    torch.testing.assert_close(move(path, "extrapolated", 10), 15 * DIRECTION)
    torch.testing.assert_close(move(path, "straight", 10), 9 * 2.5 * DIRECTION)


def test_a_move_across_the_first_direction_is_left_out():
    across = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    signs = (1, -1, -1, 1)  # orthogonal to a constant and to the steps
    path = path_of(
        torch.stack([step * DIRECTION + sign * across for step, sign in zip(STEPS, signs, strict=True)]), STEPS
    )
    torch.testing.assert_close(move(path, "extrapolated", 8), 8 * DIRECTION, atol=1e-5, rtol=0)
    torch.testing.assert_close(move(path, "straight", 8), 8 * DIRECTION + 2 * across)
    assert path.rank_one == pytest.approx(750 / 754)


def test_a_tensor_that_did_not_move_stays():
    path = path_of(torch.zeros(4, 2, 2), STEPS)
    assert not move(path, "extrapolated", 8).any()
    moved = path_of(torch.stack([step * DIRECTION for step in STEPS]), STEPS)
    assert straightness([path, moved]) == {"rank one": 1.0, "fit": 1.0}


def test_likeness_of_two_moves():
    one, other = {"w": torch.tensor([3.0, 4.0])}, {"w": torch.tensor([0.0, 10.0])}
    assert likeness(one, other) == {"cosine": 0.8, "length": 0.5}


def test_the_recovered_share_is_that_of_the_mean_gain():
    """Gains of 0.1 and 0.3, of which 0.1 and 0.1 are recovered: 0.2 of 0.4, where the mean of the shares is 2 / 3."""
    runs = [
        {"accuracy": {"trained": {0: 0.2, 8: 0.2 + gain}, **{way: {8: 0.3} for way in WAYS}}} for gain in (0.1, 0.3)
    ]
    assert summary(runs)["extrapolated at 8"]["recovered"] == pytest.approx(0.5)
