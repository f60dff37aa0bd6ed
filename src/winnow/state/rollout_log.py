"""The rollouts of a run: a file per step, and an index with a line per file, by which a resume checks them.

    RUN/rollouts/step-000012.parquet      see rollout_files.py
    RUN/rollouts/.index.jsonl             {"step":12,"bytes":81230,"tail_sha256":"..."}: expected size and digest

A checkpoint marks the end of the index only. A resume compares the sizes of the files listed before that mark, and the
last bytes of the newest one, which differ between any two files. It opens no other file. Readers of the folder skip
names that start with a dot. This module imports no torch, and pyarrow only to write.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from winnow import ranks
from winnow.records import Group
from winnow.state.disk import check_kind, draft_of, opened, replace_file, sync
from winnow.state.log_lines import LineLog, refusals
from winnow.state.log_marks import Mark, lost, mark_of
from winnow.state.log_rows import encode
from winnow.state.rollout_files import ROLLOUTS, files_by_step, path_of, write

if TYPE_CHECKING:
    from winnow.state.rollout_columns import Row

INDEX = f"{ROLLOUTS}/.index.jsonl"
Kept = Literal["all", "kept", "none"]
_NAMED = 3  # most files in one message


class RolloutLog:
    """Writes every `every`-th step.

    `rollouts` is "all", "kept" (the others without texts and tokens) or "none".
    """

    def __init__(self, run: Path, *, seed: int, mark: Mark | None, rollouts: Kept, every: int) -> None:
        self._folder = run / ROLLOUTS
        self._index = LineLog(run / INDEX, mark)
        self._seed, self._rollouts, self._every = seed, rollouts, every
        self._unsynced: list[Path] = []

    def write(self, step: int, groups: Sequence[Group], weights: Mapping[tuple[int, int], float]) -> None:
        """Log a step. The keys of `weights` are `TrainingSequence.key`.

        Raises ValueError for a group that is not filled up to its advantages, RunFolderError where writing fails.
        """
        if self._rollouts == "none" or step % self._every or not any(group.rollouts for group in groups):
            return
        if not ranks.is_writer():
            return
        path = path_of(self._folder, step)
        with refusals(path):
            check_kind(self._folder, "a folder")
            self._folder.mkdir(parents=True, exist_ok=True)
            mark = write(
                path,
                step,
                self._seed,
                _rows(groups, weights),
                only_kept=self._rollouts == "kept",
                # Called before the rename: a signal right after it must not leave a file that is never synced
                renamed=lambda: self._unsynced.append(path),
            )
        try:
            self._index.append(step, _line(step, mark))
        except Exception:
            with contextlib.suppress(OSError):
                path.unlink()
            raise

    def lost(self) -> str | None:
        """The files that are missing or changed since the index was marked, in words; None without any.

        Files are compared by their sizes, and the newest also by its last bytes.

        Raises RunFolderError where the folder or a file is something else, DataError for a damaged index.
        """
        with refusals(self._folder):
            check_kind(self._folder, "a folder")
        loss = self._index.lost()
        if loss is not None:
            return f"{self._index.path.name}: {loss}"
        files = [
            (path_of(self._folder, row["step"]), Mark(row["bytes"], row["tail_sha256"]))
            for row in self._index.marked_rows()
        ]
        wrong = [loss for path, mark in files if (loss := _other_size(path, mark))]
        if wrong:
            more = f" (and {len(wrong) - _NAMED} more files)" if len(wrong) > _NAMED else ""
            return "; ".join(wrong[:_NAMED]) + more
        loss = lost(*files[-1]) if files else None
        return f"{files[-1][0].name}: {loss}" if loss else None

    def extent(self) -> str:
        """The last step that has a file, in words for a message."""
        steps = files_by_step(self._folder)
        return f"its last file is of step {max(steps)}" if steps else "it contains no file of rollouts"

    def sync(self, step: int) -> Mark | None:
        """Wait until every file is on the disk, and return the index's mark before `step`. Raises RunFolderError."""
        if not self._index.path.exists():
            return None
        for path in self._unsynced:
            with refusals(path):
                if path.exists():
                    sync(path)
        with refusals(self._folder):
            sync(self._folder)
        self._unsynced.clear()
        return self._index.sync(step)

    def remove_from(self, step: int) -> None:
        """Remove the files of `step` and later ones, the newest first, and drafts of an interrupted write.

        Where no checkpoint has a mark of the index, it is made again from the files that stay. Raises RunFolderError,
        and DataError for a damaged index.
        """
        with refusals(self._folder):
            check_kind(self._folder, "a folder")
            files = files_by_step(self._folder)
            for path in reversed(files.values()):
                check_kind(path, "a file")
        if ranks.is_writer():
            with refusals(self._folder):
                for draft in self._folder.glob(draft_of(Path("step-*.parquet")).name):
                    draft.unlink()
                for of, path in reversed(files.items()):
                    if of >= step:
                        path.unlink()
            if not self._index.known:
                self._make_index({of: path for of, path in files.items() if of < step})
        self._index.cut_from(step)

    def _make_index(self, files: Mapping[int, Path]) -> None:
        """Write the index of these files, or remove it where there are none."""
        path = self._index.path
        with refusals(path):
            check_kind(path, "a file")
            if not files:
                path.unlink(missing_ok=True)
                return
            lines = []
            for step, file in files.items():
                with opened(file, 0) as descriptor:
                    lines.append(_line(step, mark_of(descriptor)))
            replace_file(path, b"".join(lines))


def _other_size(path: Path, mark: Mark) -> str | None:
    """How the size of a file differs from its mark, in words; None where it does not."""
    with refusals(path):
        check_kind(path, "a file")
    size = path.stat().st_size if path.exists() else None
    if size == mark.bytes:
        return None
    state = "the file does not exist" if size is None else f"the file has {size} bytes"
    return f"{path.name}: {state}, and had {mark.bytes} bytes"


def _line(step: int, mark: Mark) -> bytes:
    return encode({"step": step, **dataclasses.asdict(mark)}) + b"\n"


def _rows(groups: Sequence[Group], weights: Mapping[tuple[int, int], float]) -> Iterator[Row]:
    """The rows of a step, made group by group, so that they are never all in memory."""
    from winnow.state.rollout_columns import rows_of

    for place, group in enumerate(groups):
        yield from rows_of(group, place, weights)
