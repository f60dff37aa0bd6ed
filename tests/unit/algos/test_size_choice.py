"""Which sizes a run may move to, which it takes, and the noise that follows from products of gradients."""

import numpy as np
import pytest

from winnow.algos.costs import StepClock, StepWork, proportional
from winnow.algos.planning import Noise, Rule, group_signal, second_moment
from winnow.algos.reward_mixture import pass_rates
from winnow.algos.size_choice import LEAST_GAIN, SizeBounds, chosen, compare, moves, noise_factor, signal_share
from winnow.algos.step_plan import Setting, StepModel, StepStatistics

WIDE = SizeBounds(rollouts=(2, 128), kept=(2, 64), prompts=(1, 64))
MIXTURE = pass_rates([0.2, 0.7], [1, 1])
WORK = StepWork(prompts=4, rollouts=32.0, tokens_generated=192.0, trained=24.0, tokens_trained=144.0)
STATISTICS = StepStatistics(MIXTURE, WORK, {}, np.ones(6))
NOW = Setting(8, 8, 4)


def clock(generate, update):
    return StepClock(proportional(WORK, {"generate": generate, "update": update}), np.ones(6))


def test_a_move_changes_no_size_and_no_batch_by_more_than_a_factor_of_two():
    found = moves(Setting(16, 4, 8), WIDE, jump=False)
    assert Setting(16, 4, 8) in found
    assert {one.rollouts for one in found} == {8, 16, 32}
    assert {one.kept for one in found} == {2, 4, 8}
    assert {one.prompts for one in found} == {4, 8, 16}
    assert {one.prompts * one.kept for one in found} == {16, 32, 64}  # now 32: neither 8 nor 128
    assert len(found) == 3 * 7  # of 9 pairs of m and P, two change the batch by four


@pytest.mark.parametrize("now", [Setting(7, 5, 3), Setting(5, 3, 3), Setting(3, 3, 1)])
def test_odd_sizes_change_by_a_factor_of_two_at_most(now):
    for one in moves(now, WIDE, jump=False):
        for size in ("rollouts", "kept", "prompts"):
            assert 1 / 2 <= getattr(one, size) / getattr(now, size) <= 2


def test_the_jump_reaches_every_size_within_the_bounds():
    found = moves(Setting(128, 64, 4), WIDE, jump=True)
    assert Setting(2, 2, 1) in found
    assert Setting(16, 4, 64) in found
    assert all(WIDE.allows(one) for one in found)
    assert {one.rollouts for one in found} == {2, 4, 8, 16, 32, 64, 128}


def test_all_rollouts_are_kept_where_the_selector_keeps_all():
    bounds = SizeBounds(rollouts=(2, 16), kept=(2, 16), prompts=(4, 8), keeps_all=True)
    for jump in (False, True):
        assert all(one.kept == one.rollouts for one in moves(Setting(8, 8, 4), bounds, jump=jump))
        narrow = SizeBounds(rollouts=(2, 16), kept=(2, 8), prompts=(4, 8), keeps_all=True)
        assert all(narrow.allows(one) for one in moves(Setting(8, 8, 4), narrow, jump=jump))


def test_the_setting_now_is_compared_even_outside_of_the_bounds():
    assert moves(Setting(8, 4, 4), SizeBounds((16, 32), (2, 8), (4, 8)), jump=False)[0] == Setting(8, 4, 4)


def test_the_bounds_name_the_setting_that_needs_most():
    assert SizeBounds((2, 16), (2, 64), (4, 8)).largest == Setting(16, 16, 8)


def test_a_gain_is_a_ratio_of_progress_per_second_at_each_noise():
    model = StepModel(NOW, Rule("grpo"), Noise(5.0, 2.0), law="tuned")
    other, hand = Setting(16, 4, 2), clock(2.0, 1.0)
    found = {one.prediction.setting: one for one in compare(
        model, [NOW, other], STATISTICS, hand, at_once=np.inf, factors=(0.25, 4.0)
    )}  # fmt: skip
    assert found[NOW].gains == pytest.approx((1.0, 1.0))
    for place, factor in enumerate((0.25, 4.0)):
        noisy = StepModel(NOW, Rule("grpo"), Noise(5.0 * factor, 2.0 * factor), law="tuned")
        rates = [one.rate for one in noisy.predict([NOW, other], STATISTICS, hand)]
        assert found[other].gains[place] == pytest.approx(rates[1] / rates[0])


def test_the_best_is_the_one_with_the_largest_least_gain():
    """More prompts help if the noise is large, fewer if it is small: neither is better at both."""
    model = StepModel(NOW, Rule("grpo"), Noise(5.0, 2.0), law="tuned")
    settings = [Setting(8, 8, p) for p in (1, 4, 16)]
    noises = {"small": (1e-3,), "large": (1e3,), "both": (1e-3, 1e3)}
    best = {}
    for name, factors in noises.items():
        found = compare(model, settings, STATISTICS, clock(1.0, 1.0), at_once=np.inf, factors=factors)
        assert [one.least for one in found] == sorted((one.least for one in found), reverse=True)
        best[name] = chosen(found, NOW)
    assert best["small"].prompts == 1
    assert best["both"] == NOW


def test_a_small_gain_is_no_reason_to_change():
    model = StepModel(NOW, Rule("grpo"), Noise(5.0, 2.0), law="tuned")
    for update, stays in ((1e-6, True), (50.0, False)):  # with dear updates, half of the rollouts pay
        found = compare(model, [NOW, Setting(8, 4, 4)], STATISTICS, clock(1.0, update), at_once=np.inf, factors=(1.0,))
        assert (chosen(found, NOW) == NOW) == stays == (found[0].least < LEAST_GAIN)


@pytest.mark.parametrize("factor", [0.1, 1.0, 7.0])
@pytest.mark.parametrize("setting", [Setting(16, 4, 8), Setting(4, 4, 32)])
def test_the_noise_follows_from_the_share_of_signal(factor, setting):
    group = group_signal(MIXTURE, setting.rollouts, setting.kept, Rule("grpo"))
    noise = Noise(6.3, 4.3)
    moment = second_moment(group, setting.prompts, Noise(6.3 * factor, 4.3 * factor))
    assert noise_factor(group.signal**2 / moment, group, setting.prompts, noise) == pytest.approx(factor)


def test_a_share_of_nothing_or_of_all_is_an_extreme_noise():
    group = group_signal(MIXTURE, 8, 8, Rule("grpo"))
    assert noise_factor(0.0, group, 4, Noise(6.3, 4.3)) == 16.0
    assert noise_factor(1.0, group, 4, Noise(6.3, 4.3)) == 1 / 16
    flat = group_signal(pass_rates([1.0], [1]), 8, 8, Rule("grpo"))
    assert noise_factor(0.5, flat, 4, Noise(6.3, 4.3)) == 1.0


def test_products_of_gradients_show_the_share_of_signal():
    """Gradients of 400 numbers with the mean (2, 0, 0, ...) and the variance 0.01 in each: 4 / (4 + 4)."""
    rng = np.random.default_rng(0)
    mean = np.zeros(400)
    mean[0] = 2.0
    gradients = mean + 0.1 * rng.standard_normal((200, 400))
    products, earlier = [], gradients[0]
    for count, gradient in enumerate(gradients[1:], start=1):
        products.append((float(gradient @ earlier), float(gradient @ gradient)))
        earlier = earlier + (gradient - earlier) / (count + 1)
    assert signal_share(products) == pytest.approx(0.5, abs=0.03)
    assert signal_share([(-1.0, 2.0)]) == 0.0
    assert signal_share([]) is None
