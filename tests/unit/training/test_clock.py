"""The clock of a run counts its steps and nothing else. Tests drive it: 60 seconds to a step here."""

from __future__ import annotations

import pytest

from winnow.config_file import validate
from winnow.training.clock import TrainingClock


class Hand:
    """A clock that goes where a test sets it."""

    def __init__(self, seconds=1000.0):
        self.seconds = seconds

    def __call__(self):
        return self.seconds


def clock(hand, **keys):
    return TrainingClock(validate(keys or {"max_hours": 6}), hand)


def step(made, hand, seconds=60.0):
    with made.step():
        hand.seconds += abs(seconds)
        if seconds < 0:
            raise ValueError("backwards")


def test_it_runs_in_steps_alone():
    hand = Hand()
    made = clock(hand)
    step(made, hand, 1800)
    hand.seconds += 9999  # an evaluation
    assert made.hours == 0.5
    with made.step():
        hand.seconds += 900
        assert made.hours == 0.75, "as it is logged: at the end of a step that is still under way"


def test_a_step_that_breaks_off_stops_it():
    hand = Hand()
    made = clock(hand)
    with pytest.raises(ValueError, match="backwards"):
        step(made, hand, -1)
    hand.seconds += 3600
    assert made.hours == 1 / 3600


@pytest.mark.parametrize(
    ("minutes", "passed"),
    [(2, [0, 1, 0, 1, 0, 1]), (1, [1] * 6), (2.5, [0, 0, 1, 0, 1, 0]), (0.25, [1] * 6), (0, [0] * 6), (7, [0] * 6)],
)
def test_a_multiple_of_the_minutes_falls_into_a_step(minutes, passed):
    """Six steps of a minute; a step in which several multiples fall is one occasion."""
    hand = Hand()
    made, found = clock(hand), []
    for _ in range(6):
        step(made, hand)
        found.append(int(made.passed(minutes)))
    assert found == passed


def test_it_is_over_at_the_first_boundary_at_or_after_the_hours():
    hand = Hand()
    made, found = clock(hand), []
    for _ in range(4):
        found.append((made.is_over(2 / 60), made.is_over(0)))
        step(made, hand)
    assert found == [(False, False), (False, False), (True, False), (True, False)]


def test_it_goes_on_where_it_was_saved_whatever_the_machines_clock_says():
    hand = Hand()
    made = clock(hand)
    step(made, hand, 100)
    step(made, hand, 50)
    saved = made.state_dict()
    assert saved == {"seconds": 150.0, "before": 100.0}
    later = Hand(5.0)
    again = clock(later)
    again.load_state_dict(saved)
    assert (again.hours, again.passed(2), again.passed(1)) == (150 / 3600, True, True)
    step(again, later, 50)
    assert again.state_dict() == {"seconds": 200.0, "before": 150.0}


@pytest.mark.parametrize(
    ("keys", "asked"),
    [
        ({"steps": 3}, False),
        ({"max_hours": 0.5}, True),
        ({"evaluate": {"every_minutes": 2}}, True),
        ({"checkpoint": {"every_minutes": 30}}, True),
    ],
)
def test_only_a_run_that_asks_for_it_keeps_and_logs_it(keys, asked):
    made = clock(Hand(), **keys)
    assert made.state_dict() == ({"seconds": 0.0, "before": 0.0} if asked else {})
    assert made.metrics("time/training_hours") == ({"time/training_hours": 0.0} if asked else {})


def test_a_run_that_no_longer_asks_keeps_what_it_had():
    made = clock(Hand(), steps=3)
    made.load_state_dict({"seconds": 60.0, "before": 0.0})
    assert made.state_dict() == {"seconds": 60.0, "before": 0.0}
    made = clock(Hand(), steps=3)
    made.load_state_dict({})
    assert made.state_dict() == {}
