"""One tracker, its queue and its thread: the thread that trains appends what is new to the queue, and never waits.

It takes no lock and wakes nobody up: a thread that is woken would contend with it for the interpreter and for the core
at that very moment. The tracker's thread looks into the queue every POLL_SECONDS.

The queue takes MOST_METRICS items, and samples only while it is nearly empty: where a tracker is slow, samples of
rollouts and pictures are left out first, rows of metrics last. Every one that is left out is counted.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from winnow.errors import ConfigError, WinnowError
from winnow.metrics import is_step
from winnow.report import tracker_threads
from winnow.report.tracked_items import Pictures, Samples, finite_or_nan, logged, plain
from winnow.report.tracker_mark import TrackerMark
from winnow.trackers.tracked_run import Status, TrackedRun, Tracker

MOST_METRICS = 4096  # waiting items of any kind
MOST_SAMPLES = 64  # waiting items beyond which no sample or picture is added
POLL_SECONDS = 0.1
METHODS = ("log", "rollouts", "notice", "picture", "close")
FAILURES = 5  # in a row, after which a tracker is left alone until the next launch

_WINNOW = Path(__file__).parents[1]  # where a file is no user's

What = Literal["rows of metrics", "samples of rollouts", "notices", "pictures"]


@dataclass(frozen=True)
class Launch:
    """The run that a tracker is made for, whose log has `size` bytes before `first_step` is done."""

    folder: Path
    config: Mapping[str, Any]
    first_step: int
    size: int
    pictures: Pictures
    samples: Samples


@dataclass(frozen=True)
class Item:
    """Something that a tracker is to be told; `content` is the metrics, or a text."""

    what: What
    step: int
    content: Any = None
    done: bool = False  # with it, the tracker has all there is of its step


class TrackerFeed:
    """`begin`, `put` and what else is public is called where the run trains; all else in the tracker's own thread."""

    def __init__(self, name: str, make: Callable[[TrackedRun], Tracker], *, rollouts: int, options: str = "") -> None:
        self.name, self.rollouts = name, rollouts
        self._options = options
        self.said: deque[str] = deque()  # for the user
        self._make = make
        self._launch: Launch | None = None
        self._items: deque[Item | Status] = deque()  # whose every method here is atomic, without a lock
        self._dropped, self._failed = Counter[What](), Counter[What]()  # each changed by one thread alone
        self._telling: What | None = None  # what the tracker is being told
        self._off = False
        self._failures = Counter[What]()  # in a row, of each kind: rows may fail where notices do not
        self._told = False
        self._ending, self._ended = threading.Event(), threading.Event()

    def start(self) -> None:
        """Start the thread, before the run trains: it takes what a step must not."""
        threading.Thread(target=self._work, name=f"{tracker_threads.NAME}{self.name}", daemon=True).start()

    def begin(self, launch: Launch) -> None:
        """Have the tracker made."""
        self._launch = launch

    def put(self, item: Item) -> None:
        """Queue an item, or count it as dropped. Never waits."""
        most = MOST_METRICS if item.what in ("rows of metrics", "notices") else MOST_SAMPLES
        if self._off or len(self._items) >= most:
            self._dropped[item.what] += 1
        else:
            self._items.append(item)

    def end(self, status: Status) -> None:
        """Nothing comes after this."""
        self._items.append(status)
        self._ending.set()

    def wait(self, seconds: float) -> None:
        """Until the tracker has taken what is left, at most so long."""
        if self._launch:
            self._ended.wait(max(0.0, seconds))

    def conclude(self) -> None:
        """Say what the tracker has not got, and wait for it no longer."""
        if self._launch and not self._ended.is_set():
            self._off = True
            self.said.append(f"the tracker {self.name!r} has not ended, and is not waited for any longer")
            self._dropped += self._left()
            if self._telling is not None:
                self._dropped[self._telling] += 1
        missing = self._dropped + self._failed
        if self._launch and missing:
            counts = ", ".join(f"{number} {what}" for what, number in missing.items())
            self.said.append(f"the tracker {self.name!r} did not get {counts}; the run folder has them all")

    def _work(self) -> None:
        try:
            while self._launch is None and not self._ending.wait(POLL_SECONDS):
                pass
            if self._launch is None:
                return
            self._open(self._launch)
            while isinstance(item := self._next(), Item):
                self._deliver(item)
            if self._off:
                with contextlib.suppress(Exception):  # it may have a run to close all the same
                    self._tracker.close("failed")
            else:
                self._tracker.close(item)
                if not self._failed["rows of metrics"] + self._dropped["rows of metrics"]:
                    self._mark.settle()
        except BaseException as error:  # whatever it is, it ends this thread and nothing else
            self._stop(error)
        finally:
            self._ended.set()

    def _next(self) -> Item | Status:
        while True:
            with contextlib.suppress(IndexError):
                return self._items.popleft()
            self._ending.wait(POLL_SECONDS)

    def _open(self, launch: Launch) -> None:
        folder, first_step = launch.folder, launch.first_step
        self._pictures, self._samples = launch.pictures, launch.samples
        self._mark = TrackerMark(folder, self.name, options=self._options)
        if self._mark.changed:
            self.said.append(
                f"the tracker {self.name!r}: {self._mark.changed}, so it begins a run of its own, and is sent all "
                f"earlier metrics"
            )
        since = min(self._mark.next, first_step) if self._mark.known else 0
        name = folder.absolute().name
        tracker = self._make(TrackedRun(name, folder.absolute(), launch.config, since, self._mark.id))
        if not all(callable(getattr(tracker, method, None)) for method in METHODS):
            raise ConfigError(
                f"its function returned {type(tracker).__name__}, and not an object with {', '.join(METHODS)}",
                remedy="derive one from winnow.trackers.Tracker",
                key="track",
                code="config.member_result",
            )
        self._tracker = tracker
        self._mark.begin(getattr(tracker, "id", None), since)
        for step, metrics in logged(folder, launch.size, since) if launch.size else ():
            self._deliver(Item("rows of metrics", step, metrics, done=step < first_step))
            if self.rollouts and self._mark.known and is_step(metrics):
                self._deliver(Item("samples of rollouts", step))

    def _deliver(self, item: Item) -> None:
        if self._off:
            self._failed[item.what] += 1
            return
        self._telling = item.what
        try:
            self._tell(item)
        except BaseException as error:
            self._failed[item.what] += 1
            self._failures[item.what] += 1
            if self._failures[item.what] >= FAILURES or not isinstance(error, Exception):
                self._stop(error)
            elif not self._told:
                self.said.append(f"the tracker {self.name!r} failed: {_said(error)}; training goes on")
            self._told = True
        else:
            self._failures[item.what] = 0
            if item.done and not self._failed["rows of metrics"] + self._dropped["rows of metrics"]:
                self._mark.reach(item.step + 1)
        finally:
            self._telling = None

    def _tell(self, item: Item) -> None:
        match item.what:
            case "rows of metrics":
                self._tracker.log(item.step, finite_or_nan(item.content))
            case "samples of rollouts":
                if rows := self._samples.at(item.step, self.rollouts):
                    self._tracker.rollouts(item.step, rows)
            case "notices":
                self._tracker.notice(item.step, plain(item.content))
            case "pictures":
                if png := self._pictures.at(item.step):
                    self._tracker.picture(item.step, "plot", png)

    def _stop(self, error: BaseException) -> None:
        """Say why, and take nothing more."""
        if not self._off:
            self._off = True
            goes_on = "" if self._ending.is_set() else "; training goes on"
            self.said.append(f"the tracker {self.name!r} is off until the next launch: {_said(error)}{goes_on}")
        self._failed += self._left()

    def _left(self) -> Counter[What]:
        """What waits in the queue, taken out of it and counted; but the end, for which the thread may wait."""
        left, ends = Counter[What](), list[Status]()
        with contextlib.suppress(IndexError):
            while True:
                item = self._items.popleft()
                if isinstance(item, Item):
                    left[item.what] += 1
                else:
                    ends.append(item)
        self._items.extend(ends)
        return left


def _said(error: BaseException) -> str:
    if isinstance(error, WinnowError):
        return str(error)
    said = f"{type(error).__name__}: {error}".removesuffix(": ")
    frames = traceback.extract_tb(error.__traceback__)
    place = next((frame for frame in frames if frame.filename != __file__), None)
    if place is None or Path(place.filename).is_relative_to(_WINNOW):
        return said
    return f"{said} ({place.filename}, line {place.lineno}, in {place.name})"


def wait_for(feeds: list[tuple[TrackerFeed, float]], clock: Callable[[], float] = time.monotonic) -> None:
    """Wait for each at most as many seconds as it has, all at once."""
    began = clock()
    for feed, seconds in feeds:
        feed.wait(seconds - (clock() - began))
