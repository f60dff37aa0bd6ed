"""The rows that `winnow score` has verified so far: a folder beside its output.

rescored.jsonl.unfinished/
  settings.json   the inputs, the reward and its [verify] settings; a resume needs the same
  rows.jsonl      a line for each verified row; after the last row this file is renamed to rescored.jsonl
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

from winnow.config import Config, dump
from winnow.errors import DataError, resumable
from winnow.evaluation.folder import differing_keys
from winnow.state.disk import check_kind, check_new, draft_of, errors_as, opened, refused, sync, write_all, write_json
from winnow.state.folder import LOCK, Lock, LockedFolder
from winnow.state.log import encode
from winnow.state.resume import digest, digests
from winnow.state.rollout_files import files_of
from winnow_lab.scoring import Scored

SETTINGS, ROWS = "settings.json", "rows.jsonl"
FORMAT = 1


@dataclass(frozen=True)
class UnfinishedScores(LockedFolder):
    """The rows of an unfinished output."""

    output: Path
    rows: list[Scored]  # verified by earlier calls

    @classmethod
    def open(cls, output: Path, settings: Mapping[str, Any], *, resume: bool) -> Self:
        """A new folder, or with `resume` that of an earlier call with the same `settings`, which are JSON.

        Raises DataError if the output exists, and where the folder cannot be written. It also does so where an
        earlier call left rows and `resume` is false, where the folder has other files, which `finish` would remove, and
        where `resume` finds no rows, or rows with other settings.
        """
        check_new(output)
        path = output.with_name(f"{output.name}.unfinished")
        begun = os.path.lexists(path / SETTINGS)
        if begun and not resume:
            with refused(path):
                Lock.take(path / LOCK).release()  # raises where the call that verifies them still runs
            raise resumable(
                DataError(
                    f"{path} contains rows that an interrupted call has verified",
                    remedy="resume it, or remove the folder",
                    code="data.exists",
                )
            )
        if resume and not begun:
            raise DataError(
                f"there is nothing to resume: {path} contains no rows",
                remedy="start without resume",
                code="data.missing",
            )
        with contextlib.ExitStack() as on_failure:
            with refused(path):
                path.mkdir(exist_ok=True)
                ours = {LOCK, draft_of(path / SETTINGS).name}
                others = [] if begun else sorted({entry.name for entry in path.iterdir()} - ours)
                if others:
                    raise DataError(
                        f"{path} is not empty ({', '.join(others[:3])}), and rows are kept there until the last one",
                        remedy="move it away, or choose another output",
                        code="data.exists",
                    )
                lock = Lock.take(path / LOCK)
                on_failure.callback(lock.release)
                if not begun:
                    on_failure.callback(shutil.rmtree, path, ignore_errors=True)
                    write_json(path / SETTINGS, {"winnow_score": FORMAT, **settings})
            rows = _verified_rows(path, settings) if begun else []
            on_failure.pop_all()
        return cls(path, lock, output, rows)

    def append(self, scored: Scored) -> None:
        """Write a row. Raises DataError if that fails; a resume continues after the rows before it."""
        with self._refused(), opened(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as descriptor:
            write_all(descriptor, encode(scored.row()) + b"\n")

    def finish(self) -> None:
        """After the last row: rename the file of rows to the output. Raises as `append`."""
        with self._refused():
            with opened(self._file, os.O_WRONLY | os.O_CREAT) as descriptor:
                os.fsync(descriptor)
            check_new(self.output)
            self._file.rename(self.output)
            sync(self.output.parent)
        shutil.rmtree(self.path, ignore_errors=True)

    def close(self) -> None:
        """Release the folder, and remove it if it has no row, so that another attempt starts without `resume`."""
        with contextlib.suppress(OSError):
            if not self.has_a_row():
                shutil.rmtree(self.path)
        super().close()

    @contextlib.contextmanager
    def _refused(self) -> Iterator[None]:
        try:
            with refused(self.output):
                yield
        except DataError as error:
            raise (resumable(error) if self.has_a_row() else error) from error.__cause__

    def has_a_row(self) -> bool:
        """Whether there is a complete row, from which a resume can continue."""
        if not self._file.exists():
            return False
        with self._file.open("rb") as file:
            return file.readline().endswith(b"\n")

    @property
    def _file(self) -> Path:
        return self.path / ROWS


def settings_of_scores(file: Path, config: Config, base: Path) -> dict[str, Any]:
    """The inputs, the reward and its [verify] settings as JSON, without `workers`. Raises DataError for a file that
    cannot be read.
    """
    with errors_as(DataError, f"cannot read {file}", "name a .jsonl file or a run folder", code="data.unreadable"):
        check_kind(file, "a folder" if file.is_dir() else "a file", follow=True)
        files = {path.name: digest(path) for path in files_of(file)}
    dumped = dump(config)
    verify = {key: value for key, value in dumped["verify"].items() if key != "workers"}
    inputs = digests(config, base, below="reward")
    return {"files": files, "reward": dumped["reward"], "verify": verify, "inputs": inputs}


def _verified_rows(path: Path, settings: Mapping[str, Any]) -> list[Scored]:
    """The rows of an earlier call; an incomplete last one is removed. Raises DataError for other settings."""
    with refused(path):
        check_kind(path / SETTINGS, "a file")
        check_kind(path / ROWS, "a file")
        before = _read_settings(path / SETTINGS)
        changed = differing_keys({key: before.get(key) for key in settings}, settings)
        if changed:
            raise DataError(
                f"{path} contains rows that were verified with other settings: {', '.join(changed[:3])} differ",
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
        settings = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict) or settings.get("winnow_score") != FORMAT:
        raise DataError(
            f"{path} is from a call that this version of winnow cannot resume",
            remedy=f"remove {path.parent}",
            code="data.malformed",
        )
    return settings


def _row(line: bytes, where: str) -> Scored:
    try:
        return Scored.of(json.loads(line))
    except (KeyError, TypeError, ValueError, RecursionError, AttributeError) as error:
        raise DataError(
            f"{where}: not a row of winnow score ({error})", remedy="remove the folder", code="data.malformed"
        ) from error
