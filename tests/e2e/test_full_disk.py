"""A run on a disk that fills up keeps its weights: it trains on for a while, waits for room, and then goes on."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import winnow
from refusals import refused
from refusing_disks import small_disk
from winnow.core import saving
from winnow.core.events import Notice
from winnow.core.loop import MOST_FAILED_SAVES
from winnow.errors import RunFolderError
from winnow.records import StepReport
from winnow.state import checkpoint

STEPS = 8
SIZE = 64_000_000  # of the disk, in bytes
SPARE = 200_000  # that remain for the logs, and are too few for a checkpoint


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(saving, "SECONDS_BETWEEN", 0.01)
    with small_disk(tmp_path / "disk", SIZE):
        yield tmp_path / "disk"


def filling(disk: Path, after: int, *, freed: bool, events: list[Any]) -> Callable[[Any], None]:
    """A watch that collects events, fills the disk after a step and, with `freed`, empties it when the run waits."""
    filler = disk / "filler"

    def watch(event: Any) -> None:
        events.append(event)
        if isinstance(event, StepReport) and event.step == after:
            filler.write_bytes(bytes(shutil.disk_usage(disk).free - SPARE))
        if freed and isinstance(event, Notice) and "waits for room" in event.text:
            filler.unlink()

    return watch


def train(disk: Path, smallest: Any, events: list[Any], *, freed: bool = True, after: int = 1, **keys: Any) -> Any:
    how = {"every": 1, "keep_last": 1, "background": False, **keys}
    watch = filling(disk, after, freed=freed, events=events)
    return winnow.train(**smallest(steps=STEPS, output=str(disk / "run"), checkpoint=how), watch=watch, progress=False)


def test_a_run_waits_for_room_after_three_failed_saves_and_loses_nothing(disk: Path, smallest: Any) -> None:
    events: list[Any] = []
    result = train(disk, smallest, events)
    assert (result.steps, result.interrupted) == (STEPS, False)
    assert checkpoint.newest(result.folder).step == STEPS
    failed = [at for at, event in enumerate(events) if isinstance(event, Notice) and "training goes on" in event.text]
    waiting = [at for at, event in enumerate(events) if isinstance(event, Notice) and "waits for room" in event.text]
    assert (len(failed), len(waiting)) == (MOST_FAILED_SAVES, 1)
    done = [event.step for event in events[: waiting[0]] if isinstance(event, StepReport)]
    assert done == [0, 1, 2, 3, 4]  # the saves after steps 2, 3 and 4 failed, and no step was taken before the fourth


def test_the_last_save_waits_for_room(disk: Path, smallest: Any) -> None:
    events: list[Any] = []
    result = train(disk, smallest, events, after=STEPS - 1)
    assert checkpoint.newest(result.folder).step == STEPS
    assert sum(isinstance(event, Notice) and "waits for room" in event.text for event in events) == 1


def test_the_wait_ends_at_its_limit(disk: Path, smallest: Any) -> None:
    with refused(RunFolderError, "step-000008", "make room", code="run_folder.unsaved"):
        train(disk, smallest, [], freed=False, after=STEPS - 1, wait_minutes=0.001)
    assert checkpoint.newest(disk / "run").step == STEPS - 1


def test_a_run_waits_for_room_where_nothing_may_be_mounted(smallest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the first test, on a disk that refuses every file of moments: not every user may mount a small one."""
    monkeypatch.setattr(saving, "SECONDS_BETWEEN", 0.01)
    write, full, events = checkpoint.write_tensors, list[Any](), list[Any]()

    def refusing(path: Path, *more: Any) -> Any:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, *more)

    def watch(event: Any) -> None:
        events.append(event)
        if isinstance(event, StepReport) and event.step == 1:
            full.append(event)
        if isinstance(event, Notice) and "waits for room" in event.text:
            full.clear()

    monkeypatch.setattr(checkpoint, "write_tensors", refusing)
    how = {"every": 1, "keep_last": 1, "background": False}
    result = winnow.train(**smallest(steps=STEPS, checkpoint=how), watch=watch, progress=False)
    newest = checkpoint.newest(result.folder)
    assert newest is not None
    assert (result.steps, newest.step) == (STEPS, STEPS)
    notices = [event.text for event in events if isinstance(event, Notice)]
    counts = [sum(text in notice for notice in notices) for text in ("training goes on", "waits for room")]
    assert counts == [MOST_FAILED_SAVES, 1]
