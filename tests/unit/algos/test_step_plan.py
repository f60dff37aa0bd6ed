"""Predictions for the sizes of a step, and which sizes are compared."""

import numpy as np
import pytest

from winnow.algos.costs import CostCurve, StepClock, StepCosts, StepWork, proportional
from winnow.algos.planning import Noise, Rule, UpdateBounds, group_signal, progress, second_moment
from winnow.algos.reward_mixture import pass_rates
from winnow.algos.step_plan import Setting, StepModel, StepStatistics, candidates

MIXTURE = pass_rates([0.2, 0.7], [1, 1])
WORK = StepWork(prompts=4, rollouts=32.0, tokens_generated=192.0, trained=24.0, tokens_trained=144.0)
SECONDS = {"generate": 2.0, "verify": 0.2, "select": 0.12, "logprobs": 0.5, "update": 1.5, "sync": 0.25}
STATISTICS = StepStatistics(MIXTURE, WORK, SECONDS, np.ones(6), grad_norm=0.5)
NOW = Setting(8, 8, 4)
MODEL = StepModel(NOW, Rule("grpo"), Noise(5.0, 2.0), eps=0.1, clip=0.25)
CLOCK = StepClock(proportional(WORK, SECONDS), np.ones(6))


def test_proportional_costs_are_the_phases_of_the_step_itself():
    costs = proportional(WORK, SECONDS)
    assert costs.seconds_per_step == 0.25
    assert costs.seconds_per_rollout == pytest.approx(0.32 / 32)
    assert costs.seconds(WORK) == pytest.approx(sum(SECONDS.values()))
    double = StepWork(8, 64.0, 384.0, 48.0, 288.0)
    assert costs.seconds(double) == pytest.approx(2 * sum(SECONDS.values()) - 0.25)
    longer = StepWork(4, 32.0, 384.0, 24.0, 144.0)  # twice the tokens sampled
    assert costs.seconds(longer) == pytest.approx(sum(SECONDS.values()) + 2.0)


def test_a_prediction_joins_law_work_and_clock():
    setting = Setting(16, 4, 2)
    (found,) = MODEL.predict([setting], STATISTICS, CLOCK)
    group = group_signal(MIXTURE, 16, 4, Rule("grpo"))
    own = group_signal(MIXTURE, 8, 8, Rule("grpo"))
    unit = 0.5 / second_moment(own, 4, MODEL.noise) ** 0.5
    bounds = UpdateBounds(eps=0.1 / unit, clip=0.25 / unit)
    assert found.progress == pytest.approx(progress(group, 2, MODEL.noise, law="fixed", optimizer=bounds))
    trained = 2 * 4 * group.learning
    assert found.work == StepWork(2, 32, pytest.approx(192.0), pytest.approx(trained), pytest.approx(6 * trained))
    assert found.seconds.sampling == pytest.approx(2.0)
    assert found.seconds.update == pytest.approx(2.0 * trained / 24)
    assert found.seconds.rest == pytest.approx(0.32 + 0.25)
    assert found.flat == pytest.approx((0.2**16 + 0.8**16 + 0.3**16 + 0.7**16) / 2)
    assert found.rate == pytest.approx(found.progress / found.seconds.total)
    assert not found.extrapolated  # a proportion has no last point


def test_epochs_and_updates_count_as_in_a_step():
    many = StepModel(NOW, Rule("grpo"), Noise(5.0, 2.0), law="tuned", epochs=3, updates=2)
    one = StepModel(NOW, Rule("grpo"), Noise(5.0, 2.0), law="tuned")
    half, whole = one.predict([Setting(8, 8, 2), NOW], STATISTICS, CLOCK)
    (found,) = many.predict([NOW], STATISTICS, CLOCK)
    assert found.progress == pytest.approx(6 * half.progress)
    assert found.work.trained == pytest.approx(3 * whole.work.trained)
    assert many.critical_prompts(MIXTURE, NOW) == pytest.approx(2 * one.critical_prompts(MIXTURE, NOW))


def test_flat_groups_are_trained_on_where_a_trainer_does_so():
    every = StepModel(NOW, Rule("grpo"), trains_all=True)
    assert every.predict([NOW], STATISTICS, CLOCK)[0].work.trained == 32
    assert MODEL.predict([NOW], STATISTICS, CLOCK)[0].work.trained < 32


def test_each_setting_is_predicted_as_if_alone():
    settings = [Setting(16, 4, 2), Setting(8, 8, 4), Setting(8, 2, 16), Setting(2, 2, 1)]
    costs = StepCosts(
        CostCurve(np.array([2.0, 8.0, 32.0]), np.array([1.0, 1.2, 3.0]), 6.0), CostCurve(np.array([24.0]), np.ones(1))
    )
    clock = StepClock(costs, np.array([1.0, 1.0, 0.5]))
    most = np.array([8.0, 512.0, 4.0, 1.0])
    together = MODEL.predict(settings, STATISTICS, clock, at_once=most)
    for setting, at_once, found in zip(settings, most, together, strict=True):
        (alone,) = MODEL.predict([setting], STATISTICS, clock, at_once=at_once)
        assert found.seconds == pytest.approx(alone.seconds)
        assert found.work == pytest.approx(alone.work)
        assert (found.setting, found.extrapolated) == (setting, alone.extrapolated)
        assert (found.progress, found.flat) == pytest.approx((alone.progress, alone.flat))
    assert [one.extrapolated for one in together] == [False, False, False, False]
    assert MODEL.predict([Setting(64, 2, 1)], STATISTICS, clock)[0].extrapolated


def test_without_a_gradient_norm_adamw_has_no_bound():
    unknown = StepStatistics(MIXTURE, WORK, SECONDS, np.ones(6))
    assert MODEL.bounds(unknown) == UpdateBounds()


def test_equal_rollouts_are_divided_among_more_or_fewer_prompts():
    found = set(candidates(Setting(8, 4, 6), prompts=False))
    assert {(one.rollouts, one.prompts) for one in found} == {
        (2, 24),
        (4, 12),
        (8, 6),
        (16, 3),
    }  # 2 of 32 are a third more
    assert {one.kept for one in found if one.rollouts == 8} == {2, 4, 8}
    assert Setting(16, 32, 3) not in found


def test_with_costs_prompts_are_varied_within_their_bounds():
    found = list(candidates(Setting(8, 8, 6), prompts=True, divisor=2, most=12))
    assert {one.prompts for one in found} == {2, 3, 6, 12}
    assert found == sorted(set(found))
    assert Setting(8, 8, 6) in found


def test_a_scaled_clock_gives_the_seconds_of_the_phases():
    costs = StepCosts(CostCurve(np.array([8.0, 32.0]), np.array([1.0, 1.6])), CostCurve(np.array([24.0]), np.ones(1)))
    clock = StepClock(costs, np.ones(6)).scaled(WORK, SECONDS, at_once=512)
    (seconds,) = clock.seconds([WORK], at_once=512)
    assert (seconds.sampling, seconds.update, seconds.rest) == pytest.approx((2.0, 2.0, 0.57))
    nothing = StepCosts(costs.sampling, CostCurve(np.array([24.0]), np.zeros(1)))
    assert StepClock(nothing, np.ones(6)).scaled(WORK, SECONDS, at_once=512) is None
