"""A sweep's folder: every run of a grid of configurations and seeds, and the result of each launch.

    sweeps/pods/
      sweep.json          labels in their order with the keys of each, seeds, the baseline; see `Contents`
      ledger.jsonl        a line at the start of each launch of a run, and one at its end; see `LedgerLine`
      grpo/config.toml    the resolved configuration of every run of that label
      grpo/seed-0/        a run's folder; see folder.py
      grpo/seed-0.log     the output of its launches
      comparison/         tables and pictures of `winnow compare`, and made_from.json; comparison-2/ after more runs
      .lock               held with flock while a process launches runs here

This module imports no torch.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ConfigDict, TypeAdapter

from winnow.errors import RunFolderError, resumable
from winnow.state.disk import check_kind, errors_as, write_json
from winnow.state.folder import LOCK, SWEEP, Lock, LockedFolder, refuse_foreign
from winnow.state.log import append, ends_cut, named
from winnow.state.manifest import MANIFEST

LEDGER, SETTINGS, COMPARISON = "ledger.jsonl", "config.toml", "comparison"
FORMAT = 1

Status = Literal["began", "finished", "stopped", "failed"]  # stopped: saved after a signal; a resume continues


@dataclass(frozen=True)
class SweepRun:
    """The state of a run of a sweep, read from its folder and from the ledger."""

    label: str
    seed: int
    path: Path
    finished: bool
    alone: bool  # every launch had the machine alone, so its seconds are comparable; False without a launch
    launched: bool  # the ledger has a launch of the run

    @property
    def name(self) -> str:
        return f"{self.label}/{self.path.name}"

    @property
    def log(self) -> Path:
        return self.path.with_name(f"{self.path.name}.log")

    @property
    def settings(self) -> Path:
        return self.path.with_name(SETTINGS)


@dataclass(frozen=True)
class Contents:
    """The runs of a sweep, and their settings."""

    labels: Mapping[str, Mapping[str, Any]]  # in order, each with the dotted keys that the sweep sets for it
    seeds: tuple[int, ...]
    baseline: str | None  # the label that the others are compared with
    inputs: Mapping[str, Mapping[str, Mapping[str, str]]]  # label -> digests by key


@dataclass(frozen=True)
class LedgerLine:
    """A line of the ledger."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # an unknown key is an error and is not ignored

    label: str
    seed: int
    status: Status
    alone: bool  # no other launch of the sweep ran at the same time, and it ran on the sweep's machine
    exit_code: int | None = None  # None at the start, for an end that was not seen, and for a launch cancelled before


def read_contents(folder: Path) -> Contents:
    """The contents of the sweep in a folder. Raises RunFolderError if none can be read."""
    path = folder / SWEEP
    unread = errors_as(
        RunFolderError, f"cannot read {path}", "name the folder of a sweep", code="run_folder.unreadable"
    )
    damaged = errors_as(
        RunFolderError,
        f"{path} does not describe a sweep of winnow",
        "put it back as the sweep wrote it",
        code="run_folder.damaged",
        of=(ValueError, KeyError, TypeError, AttributeError, RecursionError),
    )
    with unread, damaged:
        check_kind(path, "a file", follow=True)
        data = json.loads(path.read_bytes())
        if data.pop("winnow_sweep") != FORMAT:
            raise RunFolderError(
                f"{path} is of another format than {FORMAT}, which this winnow reads",
                remedy="use the version that wrote it",
                code="run_folder.unreadable",
            )
        return TypeAdapter(Contents).validate_python(data)


def read_sweep(folder: Path) -> list[SweepRun]:
    """Every run of the sweep in a folder, started or not, in the order of labels and then of seeds.

    Raises RunFolderError if the sweep or its ledger cannot be read, DataError for a wrong line of the ledger.
    """
    contents = read_contents(folder)
    launches: dict[tuple[str, int], list[LedgerLine]] = {}
    for entry in read_ledger(folder):
        launches.setdefault((entry.label, entry.seed), []).append(entry)
    return [
        _run(folder, label, seed, launches.get((label, seed), []))
        for label in contents.labels
        for seed in contents.seeds
    ]


def read_ledger(folder: Path) -> Iterator[LedgerLine]:
    """The lines of the ledger, oldest first; an incomplete last one is ignored. Raises DataError, with the line."""
    path, of_line = folder / LEDGER, TypeAdapter(LedgerLine)
    with errors_as(RunFolderError, f"cannot read {path}", "move it away", code="run_folder.unreadable"):
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for number, line in enumerate(lines, start=1):
        with named(path, number, "a launch of a run"):
            entry = of_line.validate_json(line, strict=True)
        yield entry


def run_path(folder: Path, label: str, seed: int) -> Path:
    """The folder of a run of the sweep in a folder, absolute."""
    return Path(os.path.abspath(folder)) / label / f"seed-{seed}"


def run_of_sweep(path: Path) -> SweepRun | None:
    """The run of a sweep whose folder this is; None for a run outside a sweep."""
    path = Path(os.path.abspath(path))
    folder = path.parent.parent
    runs = read_sweep(folder) if (folder / SWEEP).is_file() else []
    return next((run for run in runs if run.path == path), None)


@dataclass(frozen=True)
class SweepFolder(LockedFolder):
    """The locked folder of a sweep, in which only this process launches runs."""

    before: Contents | None  # of a resumed sweep; None for a new one

    @classmethod
    def open(cls, path: Path, *, resume: bool) -> Self:
        """Open a new folder, or with `resume` that of a sweep.

        This only takes the lock and removes an incomplete last line of the ledger; `describe` writes the contents.
        Raises RunFolderError for a folder that is not a sweep's, is in use, contains a sweep already (without
        `resume`), contains no sweep (with `resume`), or cannot be written.
        """
        with _refusals(path), contextlib.ExitStack() as on_failure:
            _check_place(path, resume=resume)
            path.mkdir(parents=True, exist_ok=True)
            lock = Lock.take(path / LOCK)
            on_failure.callback(lock.release)
            _check_place(path, resume=resume)  # again: another process may have used it before the lock was taken
            if ends_cut(ledger := path / LEDGER):
                os.truncate(ledger, ledger.read_bytes().rfind(b"\n") + 1)
            before = read_contents(path) if resume else None
            on_failure.pop_all()
        return cls(path, lock, before)

    def describe(self, contents: Contents) -> None:
        """Write the contents of the sweep. Raises RunFolderError."""
        with _refusals(self.path):
            write_json(self.path / SWEEP, {"winnow_sweep": FORMAT, **asdict(contents)})

    def note(self, entry: LedgerLine) -> None:
        """Add a line to the ledger. Raises RunFolderError."""
        append(self.path / LEDGER, json.dumps(asdict(entry)).encode() + b"\n")


def _refusals(path: Path) -> contextlib.AbstractContextManager[None]:
    problem, remedy = f"cannot use {path} for a sweep", "make room, or choose another folder"
    return errors_as(RunFolderError, problem, remedy, key="output", code="run_folder.unwritable")


def _run(folder: Path, label: str, seed: int, launches: list[LedgerLine]) -> SweepRun:
    launches = _without_cancelled(launches)
    path = run_path(folder, label, seed)
    ended = [entry for entry in launches if entry.status != "began"]
    finished = bool(ended) and ended[-1].status == "finished" and (path / MANIFEST).is_file()
    alone = bool(launches) and all(entry.alone for entry in launches)
    return SweepRun(label, seed, path, finished, alone, bool(launches))


def _without_cancelled(launches: list[LedgerLine]) -> list[LedgerLine]:
    """The lines without launches that were cancelled before they started, whose last line has no exit code."""
    kept: list[LedgerLine] = []
    for entry in launches:
        if entry.status == "stopped" and entry.exit_code is None and kept and kept[-1].status == "began":
            kept.pop()
        else:
            kept.append(entry)
    return kept


def _check_place(path: Path, *, resume: bool) -> None:
    if resume:
        if not (path / SWEEP).is_file():
            raise RunFolderError(
                f"there is no sweep to resume in {path}", remedy="start a new one", code="run_folder.missing"
            )
        return
    if (path / SWEEP).exists():
        finished = [run.finished for run in read_sweep(path)]
        done = f"{sum(finished)} of its {len(finished)} runs finished"
        raise resumable(
            RunFolderError(
                f"{path} already contains a sweep, {done}",
                remedy="resume it, or choose another folder with the key output",
                key="output",
                code="run_folder.taken",
            )
        )
    refuse_foreign(path, "sweep", SWEEP)
