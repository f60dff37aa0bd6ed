"""Events about what a run is doing: the phase that it is in, and how far sampling is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from winnow import ranks
from winnow.records import Rollout
from winnow.training.clock import Now
from winnow.training.events import PhaseBegan, RolloutsFinished, Watch, ignore_event

EVERY = 1.0  # seconds between two RolloutsFinished events


@dataclass
class Phases:
    """Passes phases to a watch. `step` is the current one or, between two steps, the next."""

    watch: Watch = ignore_event
    step: int = 0
    now: Now = time.monotonic

    def begin(self, phase: str) -> None:
        """Pass on that this phase begins, which ends the one before it."""
        self.watch(PhaseBegan(self.step, phase))

    def rollout_counter(self, total: int) -> Callable[[Rollout], None]:
        """A function to call with each finished rollout of this rank, of `total` that all ranks sample.

        It passes on the progress about once a second. The rollouts of other ranks are estimated from this rank's.
        """
        each, finished, last = ranks.count(), 0, self.now()

        def one_more(rollout: Rollout) -> None:
            nonlocal finished, last
            finished += 1
            if self.now() - last >= EVERY:
                last = self.now()
                self.watch(RolloutsFinished(self.step, min(finished * each, total), total))

        return one_more
