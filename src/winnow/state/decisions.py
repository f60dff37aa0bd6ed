"""decisions.jsonl of a run folder: the sizes that the run has chosen for its steps, a row per decision.

A row is on the disk before its sizes are used. A resume keeps the rows of later steps, and takes the sizes from them:
the seconds that a decision was made from are measured once only. So an interrupted run has the sizes of one that was
not interrupted.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from winnow import ranks
from winnow.errors import DataError
from winnow.state.disk import opened, sync
from winnow.state.log import LineLog, Mark, encode, refusals, rows, step_of, synced_mark

DECISIONS = "decisions.jsonl"
SIZES = {"rollouts", "kept", "prompts"}
Decision = dict[str, Any]  # docs/planner.md has its keys


class DecisionLog:
    """Appends decisions. `mark` is the end of the file in the checkpoint from which the run resumes."""

    def __init__(self, folder: Path, mark: Mark | None = None) -> None:
        self.log = LineLog(folder / DECISIONS, mark)
        self.path = self.log.path

    def sync(self, step: int) -> Mark | None:
        """Wait until every row is on the disk, and return the mark at the end of the decisions before earlier steps
        than `step`; None without a file. Raises DataError for a damaged row.

        A resume may have left decisions of later steps, which another resume may remove.
        """
        if not self.path.exists():
            return None
        size = self._bytes_before(step)
        with refusals(self.path):
            return synced_mark(self.path, size)

    def append(self, step: int, decision: Mapping[str, Any]) -> None:
        """Append a decision, and wait until it is on the disk. Raises RunFolderError."""
        if not ranks.is_writer():
            return
        self.log.append(step, encode({"step": step, **decision}) + b"\n")
        with refusals(self.path):
            sync(self.path)
            sync(self.path.parent)

    def cut_from(self, step: int | None) -> None:
        """Remove the decisions before `step` and later ones; None: only an incomplete last row. Raises as `sync`."""
        if not ranks.is_writer() or not self.path.exists():
            return
        size = self._bytes_before(step)
        with refusals(self.path), opened(self.path, os.O_WRONLY) as descriptor:
            os.ftruncate(descriptor, size)

    def _bytes_before(self, step: int | None) -> int:
        """Bytes of the whole rows before the first one of `step` or later; None: of all whole rows."""
        with refusals(self.path), self.path.open("rb") as file:
            whole = [line for line in file if line.endswith(b"\n")]
        stays = (step is None or step_of(self.path, place, line) < step for place, line in enumerate(whole, start=1))
        return sum(len(line) for line in itertools.compress(whole, itertools.takewhile(bool, stays)))


def read_decisions(run: Path) -> dict[int, Decision]:
    """The decisions of a run by the step before which they were made; {} for a run that makes none.

    Raises DataError, with the line, for a row that is not JSON, or whose sizes are not three counts.
    """
    path = run / DECISIONS
    if not path.is_file():
        return {}
    found = {}
    for line, row in rows(path):
        sizes = row.get("chosen")
        if not isinstance(sizes, dict) or sizes.keys() != SIZES or {*map(type, sizes.values())} != {int}:
            raise DataError(
                f"{path}, line {line}: {sizes!r} are no sizes of a step",
                remedy="put the file back as it was, or remove the row, so that a resumed run decides anew",
                code="data.malformed",
            )
        found[int(row["step"])] = row
    return found
