"""Predictions of many settings, for the evidence of a plan and for draws of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from winnow.algos.costs import StepClock
from winnow.algos.step_plan import Prediction, Setting, StepModel, StepStatistics
from winnow.records import FloatArray

Clock = Callable[[StepStatistics], StepClock]


@dataclass(frozen=True, eq=False)
class Table:
    """Predictions of [C] settings: of the evidence itself, and of [D] draws of it."""

    settings: Sequence[Setting]
    predicted: Sequence[Prediction]
    progress: FloatArray  # [D, C]
    rate: FloatArray  # [D, C] progress per second
    seconds: FloatArray  # [D, C]
    generated: FloatArray  # [D, C] tokens
    trained: FloatArray  # [D, C] tokens
    flat: FloatArray  # [D, C]
    reward: FloatArray  # [D] the mean
    mean_reward: float


def table(
    model: StepModel,
    settings: Sequence[Setting],
    statistics: StepStatistics,
    draws: Sequence[StepStatistics],
    clock: Clock,
    at_once: Callable[[Setting], float] = lambda setting: math.inf,
) -> Table:
    """Predict every setting for the statistics and for every draw."""
    most = np.array([at_once(setting) for setting in settings])

    def predict(of: StepStatistics) -> list[Prediction]:
        return model.predict(settings, of, clock(of), at_once=most)

    rows = [predict(of) for of in draws]

    def column(value: Callable[[Prediction], float]) -> FloatArray:
        return np.array([[value(one) for one in row] for row in rows], dtype=np.float64).reshape(-1, len(settings))

    return Table(
        settings=settings,
        predicted=predict(statistics),
        progress=column(lambda one: one.progress),
        rate=column(lambda one: one.rate),
        seconds=column(lambda one: one.seconds.total),
        generated=column(lambda one: one.work.tokens_generated),
        trained=column(lambda one: one.work.tokens_trained),
        flat=column(lambda one: one.flat),
        reward=np.array([of.mixture.mean for of in draws], dtype=np.float64),
        mean_reward=statistics.mixture.mean,
    )
