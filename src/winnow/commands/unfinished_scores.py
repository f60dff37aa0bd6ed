"""What `winnow score` has judged so far: a folder beside its output, which becomes the output when every row is judged.

rescored.jsonl.unfinished/
  settings.json   what is judged, and how: a resume has to judge the same
  rows.jsonl      a line for each row, as soon as it is judged; at the end this file is renamed to rescored.jsonl
  .lock           held while a process writes here
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from winnow.commands.score import Scored
from winnow.config import Config, dump
from winnow.errors import DataError, resumable
from winnow.report.evaluations.saved_evaluation import differing
from winnow.state.disk import check_kind, opened, sync, write_all, write_json
from winnow.state.input_digests import digest, digests
from winnow.state.log_rows import encode
from winnow.state.output_files import check_new, refused
from winnow.state.rollout_files import files_of
from winnow.state.run_folder import LOCK, Lock, LockedFolder

SETTINGS, ROWS = "settings.json", "rows.jsonl"
FORMAT = 1


@dataclass(frozen=True)
class UnfinishedScores(LockedFolder):
    """The rows of an output that is not finished."""

    output: Path
    rows: list[Scored]  # those that were judged before

    @classmethod
    def open(cls, output: Path, settings: Mapping[str, Any], *, resume: bool) -> Self:
        """A new one, or with `resume` that of an earlier call with the same `settings`, which are JSON.

        Raises DataError where the output exists, where an earlier call left rows and this one does not resume, where
        there are none to resume or they are of other settings, and where nothing can be written.
        """
        check_new(output)
        path = output.with_name(f"{output.name}.unfinished")
        begun = os.path.lexists(path / SETTINGS)
        if begun and not resume:
            raise resumable(
                DataError(
                    f"{path} contains rows that an interrupted call has judged",
                    remedy="resume it, or remove the folder",
                    code="data.exists",
                )
            )
        if resume and not begun:
            raise DataError(
                f"there is nothing to resume: {path} contains no rows", remedy="start anew", code="data.missing"
            )
        with contextlib.ExitStack() as on_failure:
            with refused(path):
                path.mkdir(exist_ok=True)
                lock = Lock.take(path / LOCK)
                on_failure.callback(lock.release)
                if not begun:
                    on_failure.callback(shutil.rmtree, path, ignore_errors=True)
                    write_json(path / SETTINGS, {"winnow_score": FORMAT, **settings})
            rows = _judged(path, settings) if begun else []
            on_failure.pop_all()
        return cls(path, lock, output, rows)

    def append(self, scored: Scored) -> None:
        """Write a row. Raises DataError where that fails; what was written before goes on with a resume."""
        with self._refused(), opened(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as descriptor:
            write_all(descriptor, encode(scored.row()) + b"\n")

    def finish(self) -> None:
        """Every row is judged: make their file the output. Raises as `append`."""
        with self._refused():
            with opened(self._file, os.O_WRONLY | os.O_CREAT) as descriptor:
                os.fsync(descriptor)
            check_new(self.output)
            self._file.rename(self.output)
            sync(self.output.parent)
        shutil.rmtree(self.path, ignore_errors=True)

    def close(self) -> None:
        """Release the folder, which goes where there is no row in it: a second attempt then begins anew."""
        with contextlib.suppress(OSError):
            if not self.holds_a_row():
                shutil.rmtree(self.path)
        super().close()

    @contextlib.contextmanager
    def _refused(self) -> Iterator[None]:
        try:
            with refused(self.output):
                yield
        except DataError as error:
            raise (resumable(error) if self.holds_a_row() else error) from error.__cause__

    def holds_a_row(self) -> bool:
        """Whether there is anything to go on with."""
        if not self._file.exists():
            return False
        with self._file.open("rb") as file:
            return file.readline().endswith(b"\n")

    @property
    def _file(self) -> Path:
        return self.path / ROWS


def settings_of_scores(file: Path, config: Config, base: Path) -> dict[str, Any]:
    """What is judged and how, as JSON. Raises DataError for a file that cannot be read."""
    try:
        check_kind(file, "a folder" if file.is_dir() else "a file", follow=True)
        files = {path.name: digest(path) for path in files_of(file)}
    except OSError as error:
        raise DataError(
            f"cannot read {file}: {error.strerror}",
            remedy="name a .jsonl file or a run folder",
            code="data.unreadable",
        ) from error
    dumped = dump(config)
    verify = {key: value for key, value in dumped["verify"].items() if key != "workers"}
    inputs = digests(config, base, below="reward")
    return {"files": files, "reward": dumped["reward"], "verify": verify, "inputs": inputs}


def _judged(path: Path, settings: Mapping[str, Any]) -> list[Scored]:
    """The rows of an earlier call; a last one that was cut is removed. Raises DataError for other settings."""
    with refused(path):
        check_kind(path / SETTINGS, "a file")
        check_kind(path / ROWS, "a file")
        before = _read_settings(path / SETTINGS)
        changed = differing({key: before.get(key) for key in settings}, settings)
        if changed:
            raise DataError(
                f"{path} contains rows that were judged with other settings: {', '.join(changed[:3])} differ",
                remedy="use the same settings to resume, remove the folder, or choose another output",
                code="data.changed",
            )
        file = path / ROWS
        lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]
        if len(whole) < len(lines):
            os.truncate(file, sum(map(len, whole)))
    return [_row(line, f"{file}, line {number}") for number, line in enumerate(whole, start=1)]


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("winnow_score") != FORMAT:
        raise DataError(
            f"{path} is not of a call that this winnow can resume",
            remedy=f"remove {path.parent}",
            code="data.malformed",
        )
    return found


def _row(line: bytes, where: str) -> Scored:
    try:
        return Scored.of(json.loads(line))
    except (KeyError, TypeError, ValueError, RecursionError, AttributeError) as error:
        raise DataError(
            f"{where}: not a row that winnow score wrote ({error})", remedy="remove the folder", code="data.malformed"
        ) from error
