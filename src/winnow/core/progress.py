"""The parts of a run's progress: the training clock, its phases, and a save or rollouts that a thread is at work on.

The training clock, on which `max_hours` and `every_minutes` are based, runs while a step is planned and taken.
Evaluations, other work between two steps, and the time between an interruption and a resume do not count. So runs that
differ in evaluation reach each hour after equal training.

Threads: see sample.py and saving.py. Code that changes a tensor of a checkpoint calls `Saving.wait` first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from winnow import ranks
from winnow.background import BackgroundWork
from winnow.config import Config
from winnow.core.events import PhaseBegan, RolloutsFinished, Watch, ignore_event
from winnow.core.protocols import SavedCheckpoint
from winnow.engines.base import Engine
from winnow.errors import EngineError, StoppedBySignal
from winnow.records import Rollout
from winnow.state.pending import PendingGroups

Now = Callable[[], float]  # seconds since any fixed moment
Save = Callable[[], SavedCheckpoint]
OnSaved = Callable[["Future[SavedCheckpoint]"], None]

EVERY = 1.0  # seconds between two RolloutsFinished events
ENDS_WITHIN = 5.0  # seconds for a thread that samples to end, once its engine is closed


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
        # The writer's: all must agree on what is due, and only the writer waits for a save
        self._seconds = ranks.gather_from_all(self._seconds)[0]

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """A context within a step in which the clock does not run."""
        stopped = self._now()
        yield
        if self._began is not None:
            self._began += self._now() - stopped

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


class Saving:
    """At most one save at a time. Only the training thread calls its methods."""

    def __init__(self) -> None:
        self._under_way: tuple[BackgroundWork[SavedCheckpoint], OnSaved] | None = None

    def begin(self, save: Save, on_saved: OnSaved) -> None:
        """Start a save, once the one before it has ended. The next `wait` calls `on_saved` with its outcome."""
        self.wait()
        work = BackgroundWork(save, name="winnow-save")
        self._under_way = work, on_saved
        work.start()

    def wait(self) -> None:
        """Wait until no save is in progress, and call `on_saved` for the one that has ended since the last call.

        Raises what `on_saved` raises. A signal that ends the wait (`StoppedBySignal`) does not end the save.
        """
        if self._under_way is None:
            return
        work, on_saved = self._under_way
        work.wait()
        if work.outcome.cancelled():  # its start was interrupted
            self._under_way = None
            return
        try:
            on_saved(work.outcome)
        except StoppedBySignal:  # the next call of `wait` calls `on_saved` again
            raise
        except BaseException:
            self._under_way = None
            raise
        self._under_way = None


class Ahead:
    """The rollouts of the next step, with `rollout.ahead = 1`: none, under way in a thread, or complete in `pending`.

    Only the training thread calls its methods, but for `check`.
    """

    def __init__(self) -> None:
        self.pending: PendingGroups | None = None
        self._stopped = threading.Event()  # for the thread: the run ends
        self._sampling: BackgroundWork[Any] | None = None

    @property
    def under_way(self) -> bool:
        """Whether `begin` has started what `wait` has not returned yet."""
        return self._sampling is not None

    def holds(self, step: int) -> bool:
        """Whether the rollouts of this step are complete."""
        return self.pending is not None and self.pending.step == step

    def begin(self, sample: Callable[[], Any]) -> None:
        """Call `sample` in a thread."""
        self._sampling = BackgroundWork(sample, name="winnow-ahead")
        self._sampling.start()

    def wait(self) -> Any:
        """The result of `sample`; raises what it raised."""
        assert self._sampling is not None, "begin was called"
        result = self._sampling.outcome.result()
        self._sampling = None
        return result

    def check(self, rollout: Rollout) -> None:
        """Called by the thread with each finished rollout: once `stop` is called, it ends the sampling."""
        if self._stopped.is_set():
            raise EngineError("the run ends while the next step is sampled", code="engine.failed")

    def stop(self, engine: Engine) -> None:
        """End a thread that still samples, with the engine: nothing is sampled afterwards. Its result is dropped."""
        if self._sampling is None:
            return
        self._stopped.set()
        engine.close()
        self._sampling.wait(ENDS_WITHIN)
        self._sampling = None
