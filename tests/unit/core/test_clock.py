"""The clock of a run counts the time of its steps and nothing else. A step takes 60 seconds here."""

from __future__ import annotations

import pytest

from winnow.config_file import validate
from winnow.core.progress import TrainingClock


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
            raise Interrupted


class Interrupted(Exception):
    """Raised inside a step."""


def test_the_clock_runs_only_during_steps():
    hand = Hand()
    made = clock(hand)
    step(made, hand, 1800)
    hand.seconds += 9999  # an evaluation
    assert made.hours == 0.5
    with made.step():
        hand.seconds += 900
        assert made.hours == 0.75, "as it is logged: at the end of a step that is still under way"


def test_the_clock_stops_while_a_step_waits_for_a_save():
    hand = Hand()
    made = clock(hand)
    with made.step():
        hand.seconds += 60
        with made.stopped():
            hand.seconds += 9999
        hand.seconds += 60
    assert made.hours == 120 / 3600


def test_the_clock_stops_when_a_step_raises():
    hand = Hand()
    made = clock(hand)
    with pytest.raises(Interrupted):
        step(made, hand, -1)
    hand.seconds += 3600
    assert made.hours == 1 / 3600


@pytest.mark.parametrize(
    ("minutes", "passed"),
    [(2, [0, 1, 0, 1, 0, 1]), (1, [1] * 6), (2.5, [0, 0, 1, 0, 1, 0]), (0.25, [1] * 6), (0, [0] * 6), (7, [0] * 6)],
)
def test_a_multiple_of_the_minutes_passes_in_a_step(minutes, passed):
    """Six steps of a minute. Several multiples in one step count once."""
    hand = Hand()
    made, found = clock(hand), []
    for _ in range(6):
        step(made, hand)
        found.append(int(made.passed(minutes)))
    assert found == passed


def test_the_run_is_over_at_the_first_boundary_after_max_hours():
    hand = Hand()
    made, found = clock(hand), []
    for _ in range(4):
        found.append((made.is_over(2 / 60), made.is_over(0)))
        step(made, hand)
    assert found == [(False, False), (False, False), (True, False), (True, False)]


def test_a_resumed_clock_continues_whatever_the_time_of_the_machine():
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
    ("keys", "used"),
    [
        ({"steps": 3}, False),
        ({"max_hours": 0.5}, True),
        ({"evaluate": {"every_minutes": 2}}, True),
        ({"checkpoint": {"every_minutes": 30}}, True),
    ],
)
def test_the_clock_is_saved_and_logged_only_where_a_key_uses_it(keys, used):
    made = clock(Hand(), **keys)
    assert made.state_dict() == ({"seconds": 0.0, "before": 0.0} if used else {})
    assert made.metrics("time/training_hours") == ({"time/training_hours": 0.0} if used else {})


def test_a_resume_without_such_a_key_keeps_the_saved_clock():
    made = clock(Hand(), steps=3)
    made.load_state_dict({"seconds": 60.0, "before": 0.0})
    assert made.state_dict() == {"seconds": 60.0, "before": 0.0}
    made = clock(Hand(), steps=3)
    made.load_state_dict({})
    assert made.state_dict() == {}
