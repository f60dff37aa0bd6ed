"""The points of a profile, and the numbers that are read from its options."""

from __future__ import annotations

import pytest

from refusals import refused
from winnow.errors import ConfigError
from winnow_lab.profile.points import (
    MemoryBound,
    Point,
    PointResult,
    ProfileRequest,
    Step,
    Work,
    memory_bound,
    parse_counts,
    points,
    saturation,
    speed_up,
    split_evenly,
    steps,
)


def test_updates_without_accumulation_are_measured_for_kept_numbers_only():
    asked = ProfileRequest(rollouts=(16, 8), kept=(4, 8), repeats=1, seconds=1.0)
    assert list(points(asked, selects=True)) == [
        Point("sampling", 8),
        Point("sampling", 16),
        *(Point(way, 4) for way in ("whole", "accumulated", "selected")),
        *(Point(way, 8) for way in ("whole", "accumulated", "selected")),
        *(Point(way, 16) for way in ("accumulated", "selected")),
    ]
    assert not any(point.way == "selected" for point in points(asked, selects=False))


@pytest.mark.parametrize(
    ("rollouts", "prompts", "counts"),
    [(8, 99, [8]), (16, 99, [16]), (40, 99, [14, 13, 13]), (64, 3, [22, 21, 21]), (1, 99, [1])],
)
def test_prompts_get_even_numbers_of_rollouts(rollouts, prompts, counts):
    assert split_evenly(rollouts, per_prompt=16, prompts=prompts) == counts


def test_numbers_are_sorted_and_unique():
    assert parse_counts("32, 8 8,16", least=1, what="--rollouts") == (8, 16, 32)


@pytest.mark.parametrize("text", ["", ",", "8,x", "0", "-8", "1", "8.5", "9" * 5000])
def test_an_invalid_number_of_rollouts_is_refused(text):
    with refused(ConfigError, "--kept", 2, code="config.value"):
        parse_counts(text, least=2, what="--kept")


def sampled(per_token):
    """Points of 1,000 tokens from {rollouts: milliseconds per token}."""
    return [PointResult(Point("sampling", n), "measured", (ms,), Work(tokens=1000)) for n, ms in per_token.items()]


def update(way, rollouts, *seconds, ending="measured"):
    return PointResult(Point(way, rollouts), ending, seconds, Work(tokens=100) if seconds else None)


@pytest.mark.parametrize(
    ("per_token", "at"),
    [
        ({8: 8.0, 16: 4.0, 32: 2.0, 64: 1.9, 128: 1.85}, 32),  # 1.9 / 2.0 = 0.95: less than 10%
        ({8: 8.0, 16: 4.0, 32: 2.0}, None),  # still falls by half
        ({8: 8.0, 16: 7.6, 32: 3.0, 64: 2.9}, 32),  # a small gain before a large one is no saturation
        ({8: 1.0, 16: 1.2}, 8),  # it only grows
        ({8: 2.0, 16: 1.8}, None),  # 10% exactly is not less
        ({8: 4.0, 32: 3.4, 64: 3.3}, 8),  # 3.4 / 4 over two doublings: each by 8%
        ({8: 4.0, 32: 3.1, 64: 3.0}, 32),  # each by 12%
        ({8: 1.0}, None),
        ({}, None),
    ],
)
def test_beyond_saturation_no_doubling_gains_a_tenth(per_token, at):
    assert saturation(sampled(per_token)) == at


def test_failed_points_and_the_order_of_points_do_not_matter():
    results = [*reversed(sampled({8: 8.0, 16: 4.0, 32: 3.9})), PointResult(Point("sampling", 64), "out of memory")]
    assert saturation(results) == 16
    assert speed_up(results) == (8, 32, pytest.approx(8.0 / 3.9))
    assert speed_up(sampled({8: 1.0})) is None


def test_seconds_per_token_use_the_median():
    one = PointResult(Point("sampling", 8), "measured", (9.0, 2.0, 3.0), Work(tokens=6))
    assert (one.median, one.per_token) == (3.0, 0.5)


def test_the_memory_bound_is_at_the_fewest_rollouts_that_did_not_fit():
    results = [
        update("whole", 64, ending="out of memory"),
        update("whole", 16, 2.0),
        update("whole", 32, ending="out of memory"),
        update("accumulated", 64, 8.0),
        update("accumulated", 128, ending="out of time"),
        update("selected", 4, ending="out of memory"),
    ]
    assert memory_bound(results, "whole") == MemoryBound(fits=16, ends=32)
    assert memory_bound(results, "accumulated") == MemoryBound(fits=64, ends=None)  # too slow is not too large
    assert memory_bound(results, "selected") == MemoryBound(fits=None, ends=4)


def test_a_step_is_sampling_plus_an_update_of_the_same_number():
    results = [
        *sampled({8: 1.0, 16: 2.0, 32: 3.0}),
        update("accumulated", 8, 4.0, 6.0, 5.0),
        update("selected", 8, 0.5),
        update("selected", 16, 0.25),
        update("accumulated", 64, 99.0),
        update("whole", 16, 1.0),
    ]
    assert steps(results) == [Step(8, 6.0, 1.5), Step(16, None, 2.25), Step(32, None, None)]
