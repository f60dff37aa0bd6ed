"""The display of a run in progress: a live picture in a terminal, one line per step elsewhere, or JSON lines."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, get_args

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from winnow.core.events import AlarmRaised, Ended, Evaluated, Event, Notice, PhaseBegan, RolloutsFinished, Started
from winnow.errors import ConfigError, WinnowError
from winnow.metrics import per_prompt_metric
from winnow.records import Alarm, StepReport
from winnow.run_view.configuration import evaluations
from winnow.run_view.forecast import RunForecast, forecast_of, read_of
from winnow.state.log import plain
from winnow.state.logbook import read_metrics
from winnow.state.saved_runs import describe, manifest_of
from winnow.view.screen import Progress, console_on, is_screen, own_output, silence
from winnow.view.text import (
    MARGIN,
    WIDTH,
    encodable,
    format_accuracies,
    format_count,
    format_decimal,
    format_duration,
    one_line,
    sanitize,
    wrap,
)

# Fields that a line omits, in this order, until it fits
LEAST_FIRST = ("speed", "plateau", "EV", "accuracy", "eval", "reward")
BETWEEN = ("load", "evaluate", "checkpoint")  # phases outside of steps
# In JSON; the others are called like their class
EVENTS: dict[type[object], str] = {PhaseBegan: "phase", RolloutsFinished: "rollouts", StepReport: "step"}
QUICK = 1.0  # seconds: the phases of a shorter step would change too fast to read
SILENT_BETWEEN, SILENT_IN_A_STEP = 10.0, 60.0  # seconds without a line, after which a line has the current phase


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
    forecast: RunForecast | None = None  # from the evaluations of this process and those in the folder before it
    margins: int = 0  # evaluations with a standard error; the line of the first one explains it
    held_out: bool = True  # whether evaluations are of other problems than training
    alarm: Alarm | None = None  # the newest alarm
    _rows: list[Mapping[str, float]] = field(default_factory=list)  # that the forecast is made from
    max_hours: float = 0.0
    seconds_left: float | None = None  # at the average pace since the first step, including evaluations between steps
    _since: float = 0.0  # when the first step of this process began

    def follow(self, event: Event) -> None:
        """Update the state from an event."""
        match event:
            case Started():
                self.begun, self.first, self.last, self.done = True, event.first_step, event.last_step, event.first_step
                self._rows = earlier_rows(event)
                self.held_out = evaluations(manifest_of(event.folder).data).held_out
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
                self.margins += not math.isnan(event.metrics.get("eval/accuracy_sampled_sem", math.nan))
                self._rows.append(read_of({"step": event.step, **event.metrics}))
                self.forecast = forecast_of(self._rows)
        if isinstance(event, StepReport | Evaluated | Ended):
            self.phase, self.sampled = "", None

    def _step(self, event: StepReport) -> None:
        now = self.clock()
        if self.done == self.first:
            self._since = now - event.metrics["seconds/step"]
        self.done, self.metrics = event.step + 1, event.metrics
        self._rows.append(read_of({"step": event.step, **event.metrics}))
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
        if self.forecast is not None and self.forecast.rises:
            fields["plateau"] = self.forecast.short()
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


def earlier_rows(event: Started) -> list[Mapping[str, float]]:
    """The rows of the steps before a resume, since its evaluations can be compared; none if they cannot be read."""
    if event.first_step == 0:
        return []
    try:
        compared = evaluations(describe(event.folder).data)
        # The row of the first step is the evaluation that a resume keeps: the log was cut before this event
        return [read_of(row) for row in compared.rows(read_metrics(event.folder)) if row["step"] <= event.first_step]
    except WinnowError:
        return []


def event_json(event: Event, standing: Standing) -> str:
    """One object in ASCII, without a line break; its field "event" is the kind of the event. NaN and infinity become
    null. A lone surrogate, which strict JSON cannot represent, becomes an escape."""
    return json.dumps(plain(_fields(event, standing), encodable), allow_nan=False).replace("\x7f", "\\u007f")


def _fields(event: Event, standing: Standing) -> dict[str, Any]:
    if isinstance(event, AlarmRaised):
        return {"event": "alarm", "step": event.alarm.step, "name": event.alarm.name, "text": event.alarm.text}
    fields = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(event).items()}
    left = {"seconds_left": standing.seconds_left} if isinstance(event, StepReport) else {}
    return {"event": EVENTS.get(type(event), type(event).__name__.lower()), **fields, **left}


Show = Callable[[Event, Standing], None]


class Display:
    """A `Watch` that displays events. If the output cannot be written any more, only the display ends."""

    def __init__(self, show: Show, file: IO[str], clock: Callable[[], float]) -> None:
        self.standing = Standing(clock)
        self._show: Show | None = show
        self._file = file

    def __call__(self, event: Event) -> None:
        self.standing.follow(event)
        if self._show is not None:
            try:
                self._show(event, self.standing)
            except OSError:  # the reader closed the pipe, the terminal is closed, or the disk is full
                self._show = None
                silence(self._file)
            except ValueError:  # the stream is closed, or cannot encode the text
                self._show = None


@contextmanager
def progress(
    how: Progress | bool = "auto",
    console: Console | None = None,
    *,
    file: IO[str] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Display]:
    """Show a run during the block: `with progress() as watch: fit(members, watch=watch)`.

    "auto" shows a live picture in a terminal and plain lines elsewhere. "plain" prints lines everywhere. "json" writes
    a JSON object per event to `file`, by default standard output. "none" shows nothing. True means "auto", and False
    "none". Raises ConfigError for anything else.
    """
    how = _checked(how)
    file = file or (console.file if console else sys.stdout)
    if how == "none":
        yield Display(lambda event, standing: None, file, clock)
    elif how == "json":
        yield Display(lambda event, standing: print(event_json(event, standing), file=file, flush=True), file, clock)
    else:
        console = console or console_on(file)
        with _drawn(console, clock, live=how == "auto" and is_screen(console)) as show:
            yield Display(show, file, clock)


def output_for(how: Progress | bool) -> AbstractContextManager[IO[str]]:
    """Standard output while a run is shown; with "json" it is reserved for the events. Raises ConfigError."""
    return own_output() if _checked(how) == "json" else nullcontext(sys.stdout)


def _checked(how: Progress | bool) -> Progress:
    if isinstance(how, bool):
        return "auto" if how else "none"
    if how not in get_args(Progress):
        raise ConfigError(
            f"progress is {how!r}",
            remedy=f"choose one of {', '.join(map(repr, get_args(Progress)))}, true or false",
            code="config.value",
        )
    return how


@contextmanager
def _drawn(console: Console, clock: Callable[[], float], *, live: bool) -> Iterator[Show]:
    """Messages as lines, and the state of the run as lines or as one picture. Text from outside is escaped, never
    interpreted.
    """
    if not live:
        yield _Lines(console, clock)
        return
    picture = Live(console=console, auto_refresh=False)  # no thread: verify workers are forked from this process

    def show(event: Event, standing: Standing) -> None:
        _print(console, _message(event, standing))
        if not _too_quick(event, standing):
            picture.update(_picture(standing, console.width), refresh=True)

    picture.start()
    try:
        yield show
    finally:
        try:
            picture.stop()
        except OSError:  # the terminal is closed
            silence(console.file)
        except ValueError:  # the stream is closed
            pass


class _Lines:
    """A line per step and message; in long phases also a line about the phase."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console, self._clock = console, clock
        self._last = clock()  # when the newest line was printed

    def __call__(self, event: Event, standing: Standing) -> None:
        line = standing.line() if isinstance(event, StepReport) else None
        text = _message(event, standing) or line or self._doing(event, standing)
        if text is not None:
            self._last = self._clock()
            _print(self._console, text)

    def _doing(self, event: Event, standing: Standing) -> str | None:
        """The line about the current phase, if it is due. Loading has one at once, as no event follows during it."""
        if not isinstance(event, PhaseBegan | RolloutsFinished):
            return None
        if standing.phase == "load":
            return "loading data and model"
        limit = SILENT_BETWEEN if standing.phase in BETWEEN else SILENT_IN_A_STEP
        return standing.doing() or None if self._clock() - self._last >= limit else None


def _print(console: Console, text: str | None) -> None:
    if text is not None:
        console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)


def _message(event: Event, standing: Standing) -> str | None:
    """The message of an event, which stays on the screen; None for events that only update the display."""
    match event:
        case Started():
            first, last = event.first_step, event.last_step
            steps = f"steps {first} to {last - 1}" if first < last else f"all {first} steps are done"
            return "\n".join([*map(sanitize, event.devices), f"{steps}, written to {sanitize(str(event.folder))}"])
        case Evaluated():
            advice = standing.forecast.advice() if standing.forecast else None
            of = "held-out" if standing.held_out else "training split"
            line = f"{of}, after {event.step} steps: {format_accuracies(event.metrics)}"
            line += f" ({MARGIN})" if "±" in line and standing.margins == 1 else ""
            return f"{line}\n{wrap(f'forecast: {advice}')}" if advice else line
        case AlarmRaised():
            return wrap(f"alarm: {event.alarm.text}")
        case Notice():
            return wrap(f"note: {event.text}")
        case _:
            return None


def _too_quick(event: Event, standing: Standing) -> bool:
    """Whether a picture of the event would change too fast to read."""
    quick = standing.metrics.get("seconds/step", QUICK) < QUICK
    return quick and isinstance(event, PhaseBegan) and event.phase not in BETWEEN


def _picture(standing: Standing, width: int) -> Table:
    picture = Table.grid()
    if standing.begun:
        picture.add_row(ProgressBar(total=max(standing.last, 1), completed=standing.done, width=60))
    for line in (standing.line(width) if standing.begun else "", standing.doing(), standing.alarmed()):
        if line:
            picture.add_row(Text(line, no_wrap=True, overflow="ellipsis"))
    return picture
