"""The points of a profile, and the numbers that are read from its options."""

import pytest

from refusals import refused
from winnow.commands.profile.points import Point, ProfileRequest, parse_counts, points, split_evenly
from winnow.errors import ConfigError


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
