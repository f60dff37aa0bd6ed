"""Forecasts of saturating curves whose end is known."""

import dataclasses

import numpy as np
import pytest

from winnow.algos.forecast import CHOSEN, EXPONENTS, LEAST_POINTS, forecast, inverse_rise, rise

STEPS = np.arange(0.0, 151.0, 6.0)


def curve(start, plateau, tau, k, steps=STEPS):
    return start + (plateau - start) * steps**k / (steps**k + tau**k)


@pytest.mark.parametrize("shape", EXPONENTS)
def test_a_rise_is_from_0_to_1_and_has_its_inverse(shape):
    tau, k = np.array([10.0, 40.0]), np.array([0.7, 1.5])
    assert rise(shape, 0.0, tau, k).tolist() == [0.0, 0.0]
    assert (rise(shape, 1e9, tau, k) > 0.999).all()
    for part in (0.1, 0.5, 0.95):
        steps = inverse_rise(shape, np.full(2, part), tau, k)
        assert rise(shape, steps, tau, k) == pytest.approx([part, part])
    assert np.isinf(inverse_rise(shape, np.ones(2), tau, k)).all()


def test_rises_at_tau_by_hand():
    tau, k = np.array([7.0]), np.array([2.0])
    assert rise("exponential", 7.0, tau, k)[0] == pytest.approx(1 - np.exp(-1))
    assert rise("power", 7.0, tau, k)[0] == pytest.approx(3 / 4)
    assert rise("hill", 7.0, tau, k)[0] == pytest.approx(1 / 2)


def test_a_curve_without_noise_is_continued():
    found = forecast(STEPS[:14], curve(0.2, 0.8, 20, 1.5)[:14])
    end = found.at(150.0)
    assert end.low < curve(0.2, 0.8, 20, 1.5)[-1] < end.high
    assert end.middle == pytest.approx(curve(0.2, 0.8, 20, 1.5)[-1], abs=0.03)
    # 0.95 * 0.8 = 0.76 = 0.2 + 0.6 g, g = 14/15, t = 20 * 14^(2/3)
    assert found.reached.low < 20 * 14 ** (2 / 3) < found.reached.high


def test_a_longer_run_has_a_narrower_forecast_that_widens_with_the_steps():
    y = curve(0.2, 0.8, 20, 1.5)
    short, long = forecast(STEPS[:8], y[:8]), forecast(STEPS[:20], y[:20])

    def width(interval):
        return interval.high - interval.low

    assert width(long.at(150.0)) < width(short.at(150.0))
    assert width(short.at(60.0)) < width(short.at(150.0)) < width(short.at(600.0))
    assert width(long.at(150.0, evaluations=1)) > width(long.at(150.0))
    assert width(long.expected_plateau) < width(short.expected_plateau)


@pytest.mark.parametrize("slope", [0.0, -0.002])
def test_a_curve_that_stays_or_falls_is_not_rising(slope):
    assert forecast(STEPS, 0.5 + slope * STEPS).rising < 0.5
    assert forecast(STEPS, 0.2 + 0.5 * STEPS**2 / (STEPS**2 + 400)).rising > 0.99


def test_a_line_has_no_plateau_in_sight():
    found = forecast(STEPS[:12], 0.1 + 0.003 * STEPS[:12])
    assert found.reached.middle > 2 * STEPS[11]
    assert found.expected_plateau.high > 0.9


@pytest.mark.parametrize(
    ("steps", "accuracies"),
    [
        (STEPS[: LEAST_POINTS - 1], [0.1] * (LEAST_POINTS - 1)),
        ([3.0] * 9, [0.1] * 9),
        (STEPS[:6], [0.1, 0.2, np.nan, np.nan, 0.3, 0.4]),
        ([], []),
    ],
)
def test_too_few_evaluations_have_no_forecast(steps, accuracies):
    assert forecast(steps, accuracies) is None


def test_the_weights_are_a_distribution_and_the_drift_is_of_the_forecast_alone():
    y = curve(0.2, 0.8, 20, 1.5)
    found = forecast(STEPS[:10], y[:10])
    assert found.weight.sum() == pytest.approx(1.0)
    still = dataclasses.replace(found, constants=dataclasses.replace(CHOSEN, drift=0.0))
    assert still.at(54.0) == found.at(54.0)  # the last evaluated step has no drift
    assert still.at(150.0).high < found.at(150.0).high


def test_intervals_cover_runs_of_the_model_itself():
    """200 noisy curves, of which the first half is seen: the interval of 90% must hold at least 85% of what came."""
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        y = curve(rng.uniform(0, 0.3), rng.uniform(0.5, 0.95), rng.uniform(5, 60), rng.uniform(0.8, 2.0))
        y = y + 0.02 * rng.standard_normal(len(y))
        interval = forecast(STEPS[:13], y[:13]).at(150.0, evaluations=3)
        inside += interval.low <= y[-3:].mean() <= interval.high
    assert inside >= 170
