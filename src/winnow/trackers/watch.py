"""A run's trackers as one watch.

with track_run(members, notify=display) as tracking:
    fit(members, watch=[display, tracking])
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from winnow import ranks
from winnow.config import TrackSection, dump
from winnow.core.events import (
    AlarmRaised,
    Ended,
    Evaluated,
    Event,
    Notice,
    PhaseBegan,
    RolloutsFinished,
    Started,
    Watch,
    ignore_event,
)
from winnow.core.members import Members
from winnow.core.stop_signals import stop_signals
from winnow.errors import StoppedBySignal
from winnow.metrics import distinct
from winnow.options import hide_secrets
from winnow.records import StepReport
from winnow.state.log import METRICS
from winnow.trackers.feed import Item, Launch, TrackerFeed
from winnow.trackers.interface import Status, without_secrets
from winnow.trackers.items import SharedData

UNFINISHED = 5.0  # seconds that trackers have after an error or a signal, whose sender may soon send SIGKILL
OF_RANKS = 0.5  # of ranks.timeout_seconds, at most: the other ranks wait meanwhile, and only up to that limit


@contextlib.contextmanager
def track_run(members: Members, *, notify: Watch) -> Iterator[Watch]:
    """The watch that feeds every tracker of the configuration, each in a separate thread. Failures and dropped items
    become notices, which are passed to `notify` in the training thread.

    At the end of the block, each tracker has its `wait_seconds` for the remaining items. A signal ends that wait, and
    nothing else.
    """
    if not members.trackers:
        yield ignore_event
        return
    names = distinct([tracker.name for tracker in members.trackers])
    sections = members.config.track
    feeds = [
        TrackerFeed(name, tracker.call, rollouts=section.rollouts, options=digest(section))
        for name, tracker, section in zip(names, members.trackers, sections, strict=True)
    ]
    watch = _Tracking(feeds, without_secrets(dump(members.config)), notify)
    for feed in feeds:
        feed.start()
    try:
        yield watch
    finally:
        for feed in feeds:
            feed.end(watch.status)
        most = float("inf") if watch.status == "finished" else UNFINISHED
        if ranks.launched_count() > 1:
            most = min(most, OF_RANKS * members.config.ranks.timeout_seconds)
        began = time.monotonic()
        with stop_signals(now=True) as stop, contextlib.suppress(StoppedBySignal), stop.may_leave(lambda: True):
            for feed, section in zip(feeds, sections, strict=True):  # all of them at the same time
                feed.wait(min(section.wait_seconds, most) - (time.monotonic() - began))
        for feed in feeds:
            feed.conclude()
        watch.pass_notices()


def digest(section: TrackSection) -> str:
    """A digest of a tracker's function and options, without the values of options that are named like a secret."""
    text = json.dumps(
        [section.label, hide_secrets(section.options, member=True)],
        default=lambda value: type(value).__name__,
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass
class _Tracking:
    """Turns events into items. It reads no file and never waits, as it runs in the training thread."""

    feeds: list[TrackerFeed]
    config: dict[str, object]
    notify: Watch
    status: Status = "failed"  # until the run has ended without an error
    _step: int = field(default=0, init=False)
    _drawn: int = field(default=-1, init=False)  # the step of the last picture

    def __call__(self, event: Event) -> None:
        match event:
            case PhaseBegan() | RolloutsFinished():  # many per step, and the latter from another thread
                return
            case Started():
                self._step = event.first_step
                folder, log = event.folder, event.folder / METRICS
                size = log.stat().st_size if log.exists() else 0
                launch = Launch(folder, self.config, event.first_step, size, SharedData(folder))
                for feed in self.feeds:
                    feed.begin(launch)
            case StepReport():
                self._step = event.step
                self._put(Item("rows of metrics", event.step, dict(event.metrics), done=True))
                self._put(Item("samples of rollouts", event.step), lambda feed: feed.rollouts > 0)
            case Evaluated():
                self._step = event.step
                self._put(Item("rows of metrics", event.step, dict(event.metrics)))
                self._picture(event.step)
            case Notice():
                self._put(Item("notices", self._step, event.text))
            case AlarmRaised():
                self._put(Item("notices", event.alarm.step, event.alarm.text))
            case Ended():
                self.status = "interrupted" if event.interrupted else "finished"
                self._picture(event.steps)
        self.pass_notices()

    def pass_notices(self) -> None:
        """Pass the notices of the trackers' threads to `notify`."""
        for feed in self.feeds:
            while feed.notices:
                self.notify(Notice(feed.notices.popleft()))

    def _put(self, item: Item, wanted: Callable[[TrackerFeed], bool] = lambda feed: True) -> None:
        for feed in self.feeds:
            if wanted(feed):
                feed.put(item)

    def _picture(self, step: int) -> None:
        if step != self._drawn:
            self._put(Item("pictures", step))
        self._drawn = step
