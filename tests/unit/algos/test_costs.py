"""Seconds of a step from two curves, by hand."""

import dataclasses

import numpy as np
import pytest

from winnow.algos.costs import CostCurve, StepCosts, StepWork

SAMPLING = CostCurve(np.array([10.0, 20.0]), np.array([2.0, 3.0]), tokens_per_rollout=5.0)
UPDATE = CostCurve(np.array([4.0]), np.array([1.0]))


@pytest.mark.parametrize(
    ("rollouts", "seconds"),
    [(10, 2.0), (15, 2.5), (20, 3.0), (40, 5.0), (5, 1.5), (0, 0.0)],
    ids=["a point", "between", "the last", "beyond: the last slope", "below: the first slope", "none"],
)
def test_a_curve_is_interpolated(rollouts, seconds):
    assert SAMPLING.at(rollouts, 5.0 * rollouts) == pytest.approx(seconds)


def test_below_its_first_point_a_curve_never_takes_less_than_nothing():
    steep = CostCurve(np.array([10.0, 20.0]), np.array([1.0, 9.0]))
    assert steep.at(1, 1.0) == 0.0


def test_longer_rollouts_cost_proportionally_more_at_a_known_length():
    assert SAMPLING.at(10, 100.0) == pytest.approx(4.0)
    assert UPDATE.at(4, 1e9) == pytest.approx(1.0)


def test_rollouts_of_one_length_take_what_the_curve_gives():
    assert SAMPLING.of_lengths(10, np.ones(5)) == pytest.approx(SAMPLING.at(10, 50))
    assert SAMPLING.of_lengths(10, np.ones(10)) == pytest.approx(SAMPLING.at(10, 100))
    assert SAMPLING.of_lengths(0, np.ones(5)) == 0.0


def test_a_token_takes_as_long_as_with_the_rollouts_that_are_left():
    """20 rollouts, half of them of two tokens: 3.0 / 5 for the first token, 2.0 / 5 for the second."""
    chance = 1 - 0.5**20
    assert SAMPLING.of_lengths(20, np.array([1.0, 0.5])) == pytest.approx(3.0 / 5 + chance * 2.0 / 5)


def test_rollouts_that_do_not_fit_side_by_side_take_turns():
    """Of 40, the first 20 take the mean length of a full call, 1.5 tokens; the last 20 as above."""
    lasting = np.array([1.0, 0.5])
    last = SAMPLING.of_lengths(20, lasting)
    assert SAMPLING.of_lengths(40, lasting, at_once=20) == pytest.approx(1.5 * 3.0 / 5 + last)
    assert UPDATE.of_lengths(8, lasting, at_once=4) == pytest.approx(2.0)  # without a length: two calls of 1.0


def test_a_curve_of_mixed_lengths_contains_the_wait_for_the_longest():
    mixed = dataclasses.replace(SAMPLING, mixed_lengths=True)
    lasting = np.array([1.0, 0.5])
    assert mixed.of_lengths(20, lasting) == pytest.approx(1.5 * 3.0 / 5)
    assert mixed.of_lengths(40, lasting, at_once=20) == pytest.approx(2 * 1.5 * 3.0 / 5)


def test_a_curve_of_one_point_is_a_line_through_zero():
    assert UPDATE.at(8, 0.0) == pytest.approx(2.0)


def test_prompts_of_one_machine_add_up_and_those_of_many_do_not():
    work = StepWork(prompts=2, rollouts=20, tokens_generated=100.0, trained=8, tokens_trained=40.0)
    step = StepCosts(SAMPLING, UPDATE, per="step", seconds_per_step=0.5, seconds_per_rollout=0.01)
    each = StepCosts(SAMPLING, UPDATE, per="prompt", seconds_per_step=0.5, seconds_per_rollout=0.01)
    assert step.seconds(work) == pytest.approx(3.0 + 2.0 + 0.5 + 0.2)
    assert each.seconds(work) == pytest.approx(2.0 + 1.0 + 0.5 + 0.1)
