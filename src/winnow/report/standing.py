"""Where a run stands, gathered from its events, in lines for a person."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from winnow.records import StepReport
from winnow.report.text import WIDTH, compact, decimal, duration, one_line
from winnow.training.events import Ended, Evaluated, Event, PhaseBegan, RolloutsFinished, Started

SPEED = "tok/s"
BETWEEN = ("load", "evaluate", "checkpoint")  # phases of no step


@dataclass
class Standing:
    """The last of each kind of news."""

    clock: Callable[[], float] = time.monotonic
    begun: bool = False  # the first step is about to be taken
    first: int = 0
    last: int = 0  # exclusive
    done: int = 0  # steps, those before a resume included
    phase: str = ""  # what is being done, where a run has said so since the last step
    step: int = 0  # of the phase
    sampled: tuple[int, int] | None = None  # rollouts finished and asked for, while they are sampled
    metrics: dict[str, float] = field(default_factory=dict)  # of the last step
    evaluation: dict[str, float] = field(default_factory=dict)  # the last one
    max_hours: float = 0.0
    seconds_left: float | None = None  # at the pace since the first step, evaluations between steps included
    _since: float = 0.0  # when the first step of this process began

    def follow(self, event: Event) -> None:
        """Take in what an event says."""
        match event:
            case Started():
                self.begun, self.first, self.last, self.done = True, event.first_step, event.last_step, event.first_step
                self.max_hours = event.max_hours
            case PhaseBegan():
                self.phase, self.step, self.sampled = event.phase, event.step, None
            case RolloutsFinished():
                self.sampled = event.finished, event.asked
            case StepReport():
                self._step(event)
            case Evaluated():
                self.evaluation = event.metrics
            case _:
                pass
        if isinstance(event, StepReport | Evaluated | Ended):
            self.phase, self.sampled = "", None

    def _step(self, event: StepReport) -> None:
        now = self.clock()
        if self.done == self.first:
            self._since = now - event.metrics["seconds/step"]
        self.done, self.metrics = event.step + 1, event.metrics
        pace = (now - self._since) / (self.done - self.first)
        self.seconds_left = pace * (self.last - self.done)
        if self.max_hours:
            training_left = 3600 * (self.max_hours - event.metrics["time/training_hours"])
            self.seconds_left = min(self.seconds_left, max(0.0, training_left))

    def line(self) -> str:
        """The last step, within a terminal's width: without its speed where that is too much."""
        fields = list(self._fields())
        line = "  ".join(fields)
        return line if len(line) <= WIDTH else "  ".join(text for text in fields if not text.endswith(SPEED))

    def _fields(self) -> Iterator[str]:
        m = self.metrics
        yield f"{self.done}/{self.last}"
        if "reward/mean" in m:
            yield f"reward {m['reward/mean']:.3f}"
            yield f"accuracy {m['reward/accuracy']:.0%}"
        if "critic/explained_variance" in m:
            yield f"EV {decimal(m['critic/explained_variance'], digits=2)}"
        if "eval/accuracy_sampled" in self.evaluation:
            yield f"eval {self.evaluation['eval/accuracy_sampled']:.0%}"
        if m:
            yield f"{compact(m['budget/tokens_generated'] / m['seconds/step'])} {SPEED}"
        if self.seconds_left is not None:
            yield f"{duration(self.seconds_left)} left"

    def doing(self) -> str:
        """ "step 12: generate, 96 of 256 rollouts"; empty between two phases."""
        if not self.phase:
            return ""
        at = "" if self.phase in BETWEEN else f"step {self.step}: "
        far = "" if self.sampled is None else f", {self.sampled[0]:,} of {self.sampled[1]:,} rollouts"
        return one_line(f"{at}{self.phase}{far}")
