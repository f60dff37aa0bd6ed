"""The state of each tracker in the run folder, for a resume: `trackers/NAME.json`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from winnow.state.disk import check_kind, write_json

TRACKERS = "trackers"
SETTLED_SECONDS = 5.0  # libraries send in the background; after SIGKILL, younger rows are sent again


class TrackerMark:
    """The tracker's id, and the first step of which it may lack data.

    A mark is ignored if the tracker's `options` (a digest) differ, as they may name another server, or if the folder is
    a copy of another run's. `changed` is then the reason, and the tracker starts a new run.
    """

    def __init__(self, run: Path, name: str, *, options: str = "", clock: Callable[[], float] = time.monotonic) -> None:
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
        self.changed = self._changed(known) if known else None
        known = {} if self.changed else known
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
        if made.is_file() and not made.samefile(self.path):
            return f"this folder is a copy of {known['run']}"
        return None

    def _write(self) -> None:
        self._since = self._clock()
        write_json(self.path, {"id": self.id, "next": self.next, "options": self._options, "run": self._run})
