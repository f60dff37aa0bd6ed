"""The state of a run, collected from its events, as lines of text."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from winnow.alarms import Alarm
from winnow.metrics import per_prompt_metric
from winnow.records import StepReport
from winnow.training.events import AlarmRaised, Ended, Evaluated, Event, PhaseBegan, RolloutsFinished, Started
from winnow.view.text import WIDTH, format_count, format_decimal, format_duration, one_line

LEAST_FIRST = ("speed", "EV", "accuracy", "eval", "reward")  # fields that a line omits, in this order, until it fits
BETWEEN = ("load", "evaluate", "checkpoint")  # phases outside of steps


@dataclass
class Standing:
    """The newest state from each kind of event."""

    clock: Callable[[], float] = time.monotonic
    begun: bool = False  # the first step is about to be taken
    first: int = 0
    last: int = 0  # exclusive
    done: int = 0  # steps, including those before a resume
    phase: str = ""  # the phase that began since the last step; empty between two phases
    step: int = 0  # the step of the phase
    sampled: tuple[int, int] | None = None  # rollouts finished and requested, during sampling
    metrics: dict[str, float] = field(default_factory=dict)  # of the last step
    evaluation: dict[str, float] = field(default_factory=dict)  # the newest evaluation
    alarm: Alarm | None = None  # the newest alarm
    max_hours: float = 0.0
    seconds_left: float | None = None  # at the average pace since the first step, including evaluations between steps
    _since: float = 0.0  # when the first step of this process began

    def follow(self, event: Event) -> None:
        """Update the state from an event."""
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
            case AlarmRaised():
                self.alarm = event.alarm
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

    def line(self, width: int = WIDTH) -> str:
        """The last step in one line. If it is longer than `width`, the least important fields are omitted."""
        fields = self._fields()
        for least in LEAST_FIRST:
            if len("  ".join(fields.values())) <= width:
                break
            fields.pop(least, None)
        return "  ".join(fields.values())

    def _fields(self) -> dict[str, str]:
        m, fields = self.metrics, {"step": f"{self.done}/{self.last}"}
        if "reward/mean" in m:
            fields["reward"] = f"reward {m[per_prompt_metric('reward/mean', [m])]:.3f}"
            fields["accuracy"] = f"accuracy {m[per_prompt_metric('reward/accuracy', [m])]:.0%}"
        if "critic/explained_variance" in m:
            fields["EV"] = f"EV {format_decimal(m['critic/explained_variance'], digits=2)}"
        if "eval/accuracy_sampled" in self.evaluation:
            fields["eval"] = f"eval {self.evaluation['eval/accuracy_sampled']:.0%}"
        if m:
            fields["speed"] = f"{format_count(m['budget/tokens_generated'] / m['seconds/step'])} tok/s"
        if self.seconds_left is not None and self.done < self.last:  # an evaluation after the last step has no estimate
            fields["left"] = f"{format_duration(self.seconds_left)} left"
        return fields

    def doing(self) -> str:
        """ "step 12: generate, 96 of 256 rollouts"; empty between two phases."""
        if not self.phase:
            return ""
        at = "" if self.phase in BETWEEN else f"step {self.step}: "
        far = "" if self.sampled is None else f", {self.sampled[0]:,} of {self.sampled[1]:,} rollouts"
        return one_line(f"{at}{self.phase}{far}")

    def alarmed(self) -> str:
        """ "newest alarm: all_flat (step 3)"; empty where none was raised."""
        return "" if self.alarm is None else one_line(f"newest alarm: {self.alarm.name} (step {self.alarm.step})")
