"""One tracker, its queue and its thread: the thread that trains puts what is new into the queue, and never waits.

The queue takes MOST_METRICS items, and samples only while it is nearly empty: where a tracker is slow, samples of
rollouts and pictures are left out first, rows of metrics last. Every one that is left out is counted.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from winnow.errors import WinnowError
from winnow.report.tracked_items import Pictures, logged, sample
from winnow.report.tracker_mark import TrackerMark
from winnow.trackers.tracked_run import Status, TrackedRun, Tracker

MOST_METRICS = 4096  # waiting items of any kind
MOST_SAMPLES = 64  # waiting items beyond which no sample or picture is added
FAILURES = 5  # in a row, after which a tracker is left alone until the next launch

_WINNOW = Path(__file__).parents[1]  # where a file is no user's

What = Literal["rows of metrics", "samples of rollouts", "notices", "pictures"]


@dataclass(frozen=True)
class Item:
    """Something that a tracker is to be told; `content` is the metrics, or a text."""

    what: What
    step: int
    content: Any = None
    done: bool = False  # with it, the tracker has all there is of its step


class TrackerFeed:
    """`put` and `end` are called where the run trains; all else in the tracker's own thread."""

    def __init__(self, name: str, make: Callable[[TrackedRun], Tracker], *, rollouts: int) -> None:
        self.name, self.rollouts = name, rollouts
        self.said: queue.SimpleQueue[str] = queue.SimpleQueue()  # for the user
        self._make = make
        self._items: queue.SimpleQueue[Item | Status] = queue.SimpleQueue()  # its `put` takes no lock of Python's
        self._dropped, self._failed = Counter[What](), Counter[What]()  # each changed by one thread alone
        self._telling: What | None = None  # what the tracker is being told
        self._off = False
        self._failures = 0
        self._told = False
        self._ended = threading.Event()
        self._begun = False

    def begin(self, folder: Path, config: Any, first_step: int, size: int, pictures: Pictures) -> None:
        """Make the tracker, for a run whose log has `size` bytes before `first_step` is done."""
        self._begun, self._pictures = True, pictures
        work = threading.Thread(
            target=self._work, args=(folder, config, first_step, size), name=f"tracker {self.name}", daemon=True
        )
        work.start()

    def put(self, item: Item) -> None:
        """Queue an item, or count it as dropped. Never waits."""
        most = MOST_METRICS if item.what in ("rows of metrics", "notices") else MOST_SAMPLES
        if self._off or self._items.qsize() >= most:
            self._dropped[item.what] += 1
        else:
            self._items.put(item)

    def end(self, status: Status) -> None:
        """Nothing comes after this."""
        self._items.put(status)

    def wait(self, seconds: float) -> None:
        """Until the tracker has taken what is left, at most so long; what it has not got is said."""
        if self._begun and not self._ended.wait(max(0.0, seconds)):
            self._off = True
            self.said.put(f"the tracker {self.name!r} has not ended, and is not waited for any longer")
            self._dropped += self._left()
            if self._telling is not None:
                self._dropped[self._telling] += 1
        missing = self._dropped + self._failed
        if self._begun and missing:
            counts = ", ".join(f"{number} {what}" for what, number in missing.items())
            self.said.put(f"the tracker {self.name!r} did not get {counts}; the run folder has them all")

    def _work(self, folder: Path, config: Any, first_step: int, size: int) -> None:
        try:
            self._open(folder, config, first_step, size)
            while isinstance(item := self._items.get(), Item):
                self._deliver(item)
            if not self._off:
                self._tracker.close(item)
                if not self._failed["rows of metrics"] + self._dropped["rows of metrics"]:
                    self._mark.settle()
        except BaseException as error:  # whatever it is, it ends this thread and nothing else
            self._stop(error)
        finally:
            self._ended.set()

    def _open(self, folder: Path, config: Any, first_step: int, size: int) -> None:
        self._folder = folder
        self._mark = TrackerMark(folder, self.name)
        since = min(self._mark.next, first_step) if self._mark.known else 0
        name = folder.absolute().name
        self._tracker = self._make(TrackedRun(name, folder.absolute(), config, since, self._mark.id))
        self._mark.begin(self._tracker.id, since)
        for step, metrics in logged(folder, size, since) if size else ():
            self._deliver(Item("rows of metrics", step, metrics, done=step < first_step))

    def _deliver(self, item: Item) -> None:
        if self._off:
            self._failed[item.what] += 1
            return
        self._telling = item.what
        try:
            self._tell(item)
        except Exception as error:
            self._failed[item.what] += 1
            self._failures += 1
            if self._failures >= FAILURES:
                self._stop(error)
            elif not self._told:
                self.said.put(f"the tracker {self.name!r} failed: {_said(error)}; training goes on")
            self._told = True
        else:
            self._failures = 0
            if item.done and not self._failed["rows of metrics"] + self._dropped["rows of metrics"]:
                self._mark.reach(item.step + 1)
        finally:
            self._telling = None

    def _tell(self, item: Item) -> None:
        match item.what:
            case "rows of metrics":
                self._tracker.log(item.step, item.content)
            case "samples of rollouts":
                if rows := sample(self._folder, item.step, self.rollouts):
                    self._tracker.rollouts(item.step, rows)
            case "notices":
                self._tracker.notice(item.step, item.content)
            case "pictures":
                if png := self._pictures.at(item.step):
                    self._tracker.picture(item.step, "plot", png)

    def _stop(self, error: BaseException) -> None:
        """Say why, and take nothing more."""
        if not self._off:
            self._off = True
            self.said.put(f"the tracker {self.name!r} is off until the next launch: {_said(error)}; training goes on")
        self._failed += self._left()

    def _left(self) -> Counter[What]:
        """What waits in the queue, taken out of it and counted; but the end, for which the thread may wait."""
        left, ends = Counter[What](), list[Status]()
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._items.get_nowait()
                if isinstance(item, Item):
                    left[item.what] += 1
                else:
                    ends.append(item)
        for status in ends:
            self._items.put(status)
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
