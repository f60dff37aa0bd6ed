"""The places of the groups in a run's files of rollouts. Only the columns that identify groups and count their
verdicts are read, so that a long run can be read in parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from winnow.errors import DataError
from winnow.state.rollout_files import ROLLOUTS, StepFile, files_by_step

COLUMNS = ("step", "prompt_id", "correct")


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """The rollouts of a prompt in a step: consecutive rows of its file."""

    step: int
    prompt_id: str
    first: int
    count: int
    verified: int
    correct: int


@dataclass
class LoggedSteps:
    """The rollouts of a run folder. A file is read once, and again if it changes, as the run may be in progress."""

    run: Path
    notes: list[str] = field(default_factory=list)  # on files that cannot be read
    _known: dict[Path, tuple[Any, list[GroupPlace]]] = field(default_factory=dict)

    def steps(self) -> dict[int, list[GroupPlace]]:
        """The groups of every logged step, in step order. A file that cannot be read is omitted, with a note."""
        groups = {}
        self.notes = []
        for step, path in files_by_step(self.run / ROLLOUTS).items():
            try:
                groups[step] = self._groups(path)
            except DataError as error:
                self.notes.append(f"step {step} is left out: {error}")
        return groups

    def file(self, step: int) -> StepFile:
        """The file of a step. Raises DataError if the step is not logged, or cannot be read."""
        files = files_by_step(self.run / ROLLOUTS)
        if step not in files:
            raise DataError(
                f"{self.run} contains no rollouts of step {step}", remedy="choose another step", code="data.missing"
            )
        return StepFile(files[step])

    def _groups(self, path: Path) -> list[GroupPlace]:
        try:
            about = path.stat()
        except OSError as error:
            raise DataError(
                f"cannot read {path}: {error.strerror or error}",
                remedy="put the file back, or allow reading it",
                code="data.unreadable",
            ) from error
        seen = about.st_mtime_ns, about.st_size, about.st_ino
        if path not in self._known or self._known[path][0] != seen:
            self._known[path] = seen, list(places(StepFile(path)))
        return self._known[path][1]


def places(file: StepFile) -> Iterator[GroupPlace]:
    """The groups of a file, in its order. Raises DataError."""
    rows = itertools.chain.from_iterable(file.rows(first, end, COLUMNS) for first, end in file.parts)
    first = 0
    for (step, prompt), same in itertools.groupby(rows, key=lambda row: (row["step"], row["prompt_id"])):
        verdicts = [row["correct"] for row in same]
        verified = [verdict for verdict in verdicts if verdict is not None]
        yield GroupPlace(step, prompt, first, len(verdicts), len(verified), sum(verified))
        first += len(verdicts)
