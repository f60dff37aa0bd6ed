"""What a run is doing, told to those who watch it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from winnow import ranks
from winnow.records import Rollout
from winnow.training.clock import Now
from winnow.training.events import PhaseBegan, RolloutsFinished, Watch, nobody

EVERY = 1.0  # seconds between two events of sampling


@dataclass
class Phases:
    """Announces phases; `step` is the one under way, or the next."""

    watch: Watch = nobody
    step: int = 0
    now: Now = time.monotonic

    def begin(self, phase: str) -> None:
        """This phase begins, whichever was under way."""
        self.watch(PhaseBegan(self.step, phase))

    def told(self, asked: int) -> Callable[[Rollout], None]:
        """What is to be called with each rollout of this rank that is finished, of so many that all ranks sample."""
        each, finished, last = ranks.count(), 0, self.now()

        def one_more(rollout: Rollout) -> None:
            nonlocal finished, last
            finished += 1
            if self.now() - last >= EVERY:
                last = self.now()
                self.watch(RolloutsFinished(self.step, min(finished * each, asked), asked))

        return one_more
