"""The training time of a run, on which `max_hours` and `every_minutes` are based.

The clock runs while a step is planned and taken. Evaluations, other work between two steps, and the time between an
interruption and a resume do not count. So runs that differ in evaluation reach each hour after equal training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from winnow import ranks
from winnow.config import Config

Now = Callable[[], float]  # seconds since any fixed moment


class TrainingClock:
    """Seconds of training up to the last boundary between two steps, and up to the one before it.

    The clock is logged, and saved in checkpoints, only where a key of the configuration depends on it.
    """

    def __init__(self, config: Config, now: Now = time.monotonic) -> None:
        self._used = any((config.max_hours, config.evaluate.every_minutes, config.checkpoint.every_minutes))
        self._now = now
        self._seconds, self._before = 0.0, 0.0
        self._began: float | None = None  # during a step

    @property
    def hours(self) -> float:
        """Hours of training so far, the current step included."""
        current = 0.0 if self._began is None else self._now() - self._began
        return (self._seconds + current) / 3600

    @contextmanager
    def step(self) -> Iterator[None]:
        """A context in which the clock runs, for the planning and the taking of a step."""
        self._before, self._began = self._seconds, self._now()
        try:
            yield
        finally:
            self._seconds += self._now() - self._began
            self._began = None
        # The mean over ranks: all must agree on whether an evaluation or a save is due
        self._seconds = ranks.sum_over_ranks(self._seconds) / ranks.count()

    def passed(self, every_minutes: float) -> bool:
        """Whether a multiple of `every_minutes` fell into the last step; never where that is 0."""
        period = 60 * every_minutes
        return period > 0 and self._seconds // period > self._before // period

    def is_over(self, max_hours: float) -> bool:
        """Whether `max_hours` of training are done; never where that is 0."""
        return 0 < max_hours <= self.hours

    def metrics(self, name: str) -> dict[str, float]:
        """The hours so far under this metric name; nothing where no key depends on the clock."""
        return {name: self.hours} if self._used else {}

    def state_dict(self) -> dict[str, Any]:
        """The state for JSON; empty where no key depends on the clock."""
        return {"seconds": self._seconds, "before": self._before} if self._used else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint's state. Where that is empty, the clock starts at 0."""
        if state:
            self._used = True
            self._seconds, self._before = state["seconds"], state["before"]
