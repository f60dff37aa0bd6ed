"""The clock of a run: how long it has trained, by which `max_hours` and `every_minutes` end, evaluate and save it.

It runs while a step is planned and taken. Evaluations, what else is done between two steps, and what lies between a
kill and a resume do not count: two runs that evaluate differently reach the same hour after as much training.
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

    Only a run whose configuration asks for the clock logs it and keeps it in its checkpoints.
    """

    def __init__(self, config: Config, now: Now = time.monotonic) -> None:
        self._asked = any((config.max_hours, config.evaluate.every_minutes, config.checkpoint.every_minutes))
        self._now = now
        self._seconds, self._before = 0.0, 0.0
        self._began: float | None = None  # while a step is under way

    @property
    def hours(self) -> float:
        """Of training so far, the step under way included."""
        under_way = 0.0 if self._began is None else self._now() - self._began
        return (self._seconds + under_way) / 3600

    @contextmanager
    def step(self) -> Iterator[None]:
        """While this lasts, a step is planned and taken."""
        self._before, self._began = self._seconds, self._now()
        try:
            yield
        finally:
            self._seconds += self._now() - self._began
            self._began = None
        self._seconds = ranks.total(self._seconds) / ranks.count()  # what is due is due on every rank

    def passed(self, every_minutes: float) -> bool:
        """Whether a multiple of so many minutes fell into the last step; of 0, none does."""
        period = 60 * every_minutes
        return period > 0 and self._seconds // period > self._before // period

    def is_over(self, max_hours: float) -> bool:
        """Whether so many hours of training are done; 0 hours never are."""
        return 0 < max_hours <= self.hours

    def metrics(self, name: str) -> dict[str, float]:
        """The hours so far under this name, where the clock is asked for."""
        return {name: self.hours} if self._asked else {}

    def state_dict(self) -> dict[str, Any]:
        """For JSON; empty where nobody asks for the clock."""
        return {"seconds": self._seconds, "before": self._before} if self._asked else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; one of a run without a clock has none, and it then counts from here."""
        if state:
            self._asked = True
            self._seconds, self._before = state["seconds"], state["before"]
