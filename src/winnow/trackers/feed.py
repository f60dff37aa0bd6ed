"""One tracker, its queue and its thread: the training thread appends new items to the queue and never waits.

The training thread takes no lock and wakes no thread: a woken thread would compete with it for the interpreter and the
core at once. The tracker's thread polls the queue every POLL_SECONDS.

The queue holds MOST_METRICS items, and accepts samples only while it is nearly empty. If a tracker is slow, samples of
rollouts and pictures are dropped first, and rows of metrics last. Every dropped item is counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from winnow.errors import ConfigError, WinnowError
from winnow.metrics import is_step
from winnow.state.disk import check_kind, write_json
from winnow.trackers.interface import Status, TrackedRun, Tracker
from winnow.trackers.items import SharedData, finite_or_nan, logged, plain

MOST_METRICS = 4096  # waiting items of any kind
MOST_SAMPLES = 64  # waiting items beyond which no sample or picture is added
POLL_SECONDS = 0.1
METHODS = ("log", "rollouts", "notice", "picture", "close")
FAILURES = 5  # in a row, after which a tracker is off until the next launch

_WINNOW = Path(__file__).parents[1]  # the package: other files are the user's

What = Literal["rows of metrics", "samples of rollouts", "notices", "pictures"]
TRACKERS = "trackers"
SETTLED_SECONDS = 5.0  # libraries send in the background; after SIGKILL, younger rows are sent again
THREADS = "tracker "  # prefix of the threads' names


@dataclass(frozen=True)
class Launch:
    """The run that a tracker is created for; its log has `size` bytes when the launch starts."""

    folder: Path
    config: Mapping[str, Any]
    first_step: int
    size: int
    data: SharedData


@dataclass(frozen=True)
class Item:
    """One item for a tracker; `content` is the metrics, or a text."""

    what: What
    step: int
    content: Any = None
    done: bool = False  # the last row of metrics of its step


class TrackerFeed:
    """Public methods are called in the training thread, private ones in the tracker's thread."""

    def __init__(self, name: str, make: Callable[[TrackedRun], Tracker], *, rollouts: int, options: str = "") -> None:
        self.name, self.rollouts = name, rollouts
        self._options = options
        self.notices: deque[str] = deque()  # for the user
        self._make = make
        self._launch: Launch | None = None
        self._items: deque[Item | Status] = deque()  # append and popleft are atomic, so no lock is needed
        # Items of this launch, and of earlier ones; and of both, those that the tracker has. One thread changes each.
        self._put, self._resent, self._received = Counter[What](), Counter[What](), Counter[What]()
        self._gap = False  # whether a row of metrics was dropped or refused
        self._off = False
        self._failures = Counter[What]()  # in a row, by kind: rows may fail while notices succeed
        self._failure_reported = False
        self._ending, self._ended = threading.Event(), threading.Event()

    def start(self) -> None:
        """Start the thread before training, so that no step spends time on it."""
        threading.Thread(target=self._work, name=f"{THREADS}{self.name}", daemon=True).start()

    def begin(self, launch: Launch) -> None:
        """Let the thread create the tracker."""
        self._launch = launch

    def put(self, item: Item) -> None:
        """Queue an item, or drop it. Never waits."""
        most = MOST_METRICS if item.what in ("rows of metrics", "notices") else MOST_SAMPLES
        self._put[item.what] += 1
        if not self._off and len(self._items) < most:
            self._items.append(item)
        elif item.what == "rows of metrics":
            self._gap = True

    def end(self, status: Status) -> None:
        """Queue the end of the launch; no item follows."""
        self._items.append(status)
        self._ending.set()

    def wait(self, seconds: float) -> None:
        """Wait until the tracker has received all items or has failed, for at most so many seconds."""
        if self._launch:
            self._ended.wait(max(0.0, seconds))

    def conclude(self) -> None:
        """Add notices about a tracker that has not finished, and about items that it did not receive."""
        if self._launch and not self._ended.is_set():
            self._off = True
            self.notices.append(f"the tracker {self.name!r} has not finished, and winnow no longer waits for it")
        counts = {what: self._put[what] + self._resent[what] - self._received[what] for what in get_args(What)}
        missing = ", ".join(f"{number} {what}" for what, number in counts.items() if number > 0)
        if self._launch and missing:
            self.notices.append(f"the tracker {self.name!r} did not receive {missing}; the run folder has them all")

    def _work(self) -> None:
        try:
            while self._launch is None and not self._ending.wait(POLL_SECONDS):
                pass
            if self._launch is None:
                return
            end = self._follow(self._launch)
            if self._off:
                with contextlib.suppress(Exception):  # a tracker that failed may still have a run to close
                    self._tracker.close("failed")
            else:
                self._tracker.close(end)
                if not self._gap:
                    self._mark.settle()
        except BaseException as error:  # even SystemExit ends this thread alone
            self._stop(error)
        finally:
            self._ended.set()

    def _follow(self, launch: Launch) -> Status:
        """Create the tracker and deliver every item. Returns how the launch ended."""
        try:
            self._open(launch)
            while isinstance(item := self._next(), Item):
                self._deliver(item)
            return item
        except BaseException as error:
            self._stop(error)
            return "failed"

    def _next(self) -> Item | Status:
        while True:
            with contextlib.suppress(IndexError):
                return self._items.popleft()
            self._ending.wait(POLL_SECONDS)

    def _open(self, launch: Launch) -> None:
        folder, first_step = launch.folder, launch.first_step
        self._data = launch.data
        # With an empty log the mark is of a launch that ended before its first step, maybe with other settings
        self._mark = TrackerMark(folder, self.name, options=self._options, new=not launch.size)
        if self._mark.changed:
            self.notices.append(
                f"the tracker {self.name!r}: {self._mark.changed}, so it starts a new run, and receives all earlier "
                f"metrics"
            )
        since = min(self._mark.next, first_step) if self._mark.known else 0
        name = folder.absolute().name
        tracker = self._make(TrackedRun(name, folder.absolute(), launch.config, since, self._mark.id))
        if not all(callable(getattr(tracker, method, None)) for method in METHODS):
            raise ConfigError(
                f"its function returned {type(tracker).__name__}, and not an object with {', '.join(METHODS)}",
                remedy="derive one from winnow.trackers.interface.Tracker",
                key="track",
                code="config.member_result",
            )
        self._tracker = tracker
        self._mark.begin(getattr(tracker, "id", None), since)
        for step, metrics in logged(folder, launch.size, since) if launch.size else ():
            self._deliver(Item("rows of metrics", step, metrics, done=step < first_step), again=True)
            if self.rollouts and self._mark.known and is_step(metrics):
                self._deliver(Item("samples of rollouts", step), again=True)

    def _deliver(self, item: Item, *, again: bool = False) -> None:
        self._resent[item.what] += again
        if self._off:
            return
        try:
            self._send(item)
        except BaseException as error:
            if item.what == "rows of metrics":
                self._gap = True
            self._failures[item.what] += 1
            if self._failures[item.what] >= FAILURES or not isinstance(error, Exception):
                self._stop(error)
            elif not self._failure_reported:
                self.notices.append(f"the tracker {self.name!r} failed: {_describe(error)}; training continues")
            self._failure_reported = True
        else:
            self._received[item.what] += 1
            self._failures[item.what] = 0
            if item.done and not self._gap:
                self._mark.reach(item.step + 1)

    def _send(self, item: Item) -> None:
        match item.what:
            case "rows of metrics":
                self._tracker.log(item.step, finite_or_nan(item.content))
            case "samples of rollouts":
                if rows := self._data.rollouts(item.step, self.rollouts):
                    self._tracker.rollouts(item.step, rows)
            case "notices":
                self._tracker.notice(item.step, plain(item.content))
            case "pictures":
                if png := self._data.picture(item.step):
                    self._tracker.picture(item.step, "plot", png)

    def _stop(self, error: BaseException) -> None:
        """Turn the tracker off with a notice."""
        if not self._off:
            self._off = True
            continues = "" if self._ending.is_set() else "; training continues"
            self.notices.append(
                f"the tracker {self.name!r} is off until the next launch: {_describe(error)}{continues}"
            )


def _describe(error: BaseException) -> str:
    """The error's text; for an error in a user's tracker also its file, line and function."""
    if isinstance(error, WinnowError):
        return str(error)
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    frames = traceback.extract_tb(error.__traceback__)
    place = next((frame for frame in frames if frame.filename != __file__), None)
    if place is None or Path(place.filename).is_relative_to(_WINNOW):
        return text
    return f"{text} ({place.filename}, line {place.lineno}, in {place.name})"


class TrackerMark:
    """The tracker's id, and the first step of which it may lack data.

    A mark is ignored if the tracker's `options` (a digest) differ, as they may name another server, or if the folder is
    a copy of another run's. `changed` is then the reason, and the tracker starts a new run.
    """

    def __init__(
        self, run: Path, name: str, *, options: str = "", new: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises OSError if the folder cannot be created, ValueError for a damaged file."""
        folder = run / TRACKERS
        check_kind(folder, "a folder")
        folder.mkdir(exist_ok=True)
        self.path = folder / f"{name}.json"
        check_kind(self.path, "a file")
        known = json.loads(self.path.read_bytes()) if self.path.exists() else {}
        sound = isinstance(known, dict) and type(known.get("id")) in (str, type(None))
        if not sound or (known and type(known.get("next")) is not int):
            raise ValueError(f"{self.path} was not written by winnow; remove it to let the tracker start a new run")
        self._options, self._run = options, str(run.absolute())
        self.changed = self._changed(known) if known and not new else None
        known = {} if self.changed or new else known
        self.known = bool(known)  # an earlier launch of this run created the tracker
        self.id: str | None = known.get("id")
        self.next = int(known.get("next") or 0)
        self._clock, self._since = clock, clock()
        self._reached = self._settling = self.next  # sent; sent by the time of the last write

    def begin(self, id: str | None, step: int) -> None:
        """Record that the tracker was created, and receives everything from `step` on. Raises OSError."""
        self.id, self.next, self._reached, self._settling = id, step, step, step
        self._write()

    def reach(self, step: int) -> None:
        """Record that everything before `step` was sent. A call at least `SETTLED_SECONDS` later writes this to disk.
        Raises OSError.
        """
        if self._clock() - self._since >= SETTLED_SECONDS:
            self.next, self._settling = self._settling, self._reached
            self._write()
        self._reached = max(self._reached, step)

    def settle(self) -> None:
        """Record that the tracker was closed, so that it has all that was sent. Raises OSError."""
        self.next = self._reached
        self._write()

    def _changed(self, known: Mapping[str, Any]) -> str | None:
        """Why the mark belongs to another tracker or run; None if it belongs to this one."""
        if known.get("options") != self._options:
            return "its options are not those of the earlier launch"
        made = Path(str(known.get("run")), TRACKERS, self.path.name)
        if os.path.isfile(made) and not made.samefile(self.path):  # False for a place that may not be looked at
            return f"this folder is a copy of {known['run']}"
        return None

    def _write(self) -> None:
        self._since = self._clock()
        write_json(self.path, {"id": self.id, "next": self.next, "options": self._options, "run": self._run})


def exit_if_running(code: int) -> None:
    """Exit the process at once with this exit code if a tracker's thread is still running.

    Python 3.11 ends daemon threads by force at exit. This aborts the process if the thread is in C++, and the run's
    exit code is lost. The run has finished all its own work when this is called.
    """
    if any(thread.name.startswith(THREADS) for thread in threading.enumerate()):
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        os._exit(code)
