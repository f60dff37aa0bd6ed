"""What a person sees while a run goes on: a live picture in a terminal, one line per step anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from winnow.records import StepReport
from winnow.report.screen import is_screen
from winnow.report.text import WIDTH, accuracies, compact, decimal, duration, safe, wrapped
from winnow.training.events import AlarmRaised, Evaluated, Event, Notice, Started

SPEED = "tok/s"


@contextmanager
def progress(console: Console | None = None, *, clock: Callable[[], float] = time.monotonic) -> Iterator[Display]:
    """Show a run while the block lasts: `with progress() as watch: fit(members, watch=watch)`."""
    console = console or Console()
    if not is_screen(console):
        yield Display(console, None, clock)
        return
    # Without a refreshing thread: verify workers are forked from this process.
    with Live(console=console, auto_refresh=False) as live:
        yield Display(console, live, clock)


@dataclass
class Standing:
    """Where a run stands, gathered from its events."""

    clock: Callable[[], float] = time.monotonic
    begun: bool = False  # the first step is about to be taken
    first: int = 0
    last: int = 0  # exclusive
    done: int = 0  # steps, those before a resume included
    metrics: dict[str, float] = field(default_factory=dict)  # of the last step
    evaluation: dict[str, float] = field(default_factory=dict)  # the last one
    max_hours: float = 0.0
    seconds_left: float | None = None  # at the pace since the first step, evaluations between steps included
    _since: float = 0.0  # when the first step of this process began

    def follow(self, event: Event) -> None:
        match event:
            case Started():
                self.begun, self.first, self.last, self.done = True, event.first_step, event.last_step, event.first_step
                self.max_hours = event.max_hours
            case StepReport():
                now = self.clock()
                if self.done == self.first:
                    self._since = now - event.metrics["seconds/step"]
                self.done, self.metrics = event.step + 1, event.metrics
                pace = (now - self._since) / (self.done - self.first)
                self.seconds_left = pace * (self.last - self.done)
                if self.max_hours:
                    training_left = 3600 * (self.max_hours - event.metrics["time/training_hours"])
                    self.seconds_left = min(self.seconds_left, max(0.0, training_left))
            case Evaluated():
                self.evaluation = event.metrics

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


class Display:
    """A `Watch` for a person. Foreign text is escaped, never interpreted."""

    def __init__(self, console: Console, live: Live | None, clock: Callable[[], float]) -> None:
        self.standing = Standing(clock)
        self._console = console
        self._live = live

    def __call__(self, event: Event) -> None:
        self.standing.follow(event)
        text = self._message(event)
        if text is not None:
            self._console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)
        if self._live is not None:
            self._live.update(_picture(self.standing), refresh=True)

    def _message(self, event: Event) -> str | None:
        """What is said once; on a screen a step only changes the picture."""
        match event:
            case Started():
                steps = f"steps {event.first_step} to {event.last_step - 1}, written to {safe(str(event.folder))}"
                return "\n".join([*map(safe, event.devices), steps])
            case Evaluated():
                return f"held-out, after {event.step} steps: {accuracies(event.metrics)}"
            case AlarmRaised():
                return wrapped(f"alarm: {event.alarm.text}")
            case Notice():
                return wrapped(f"note: {event.text}")
            case _:
                return self.standing.line() if self._live is None else None


def _picture(standing: Standing) -> Table:
    picture = Table.grid()
    picture.add_row(ProgressBar(total=max(standing.last, 1), completed=standing.done, width=60))
    picture.add_row(Text(standing.line(), no_wrap=True, overflow="ellipsis"))
    return picture
