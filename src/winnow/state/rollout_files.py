"""The rollouts of a run: a file per step, and an index with a line per file, by which a resume checks them.

    RUN/rollouts/step-000012.parquet
    RUN/rollouts/.index.jsonl             {"step":12,"bytes":81230,"tail_sha256":"..."}: expected size and digest

A file is written as a stream under another name and renamed when it is whole, so readers of the folder see whole steps
only. A row group has a single row, or at most `TOKENS_AT_ONCE` and `BYTES_AT_ONCE`. This bounds the memory of reading
and writing, and the bytes that are read for a few rows.

A checkpoint marks the end of the index only. A resume compares the sizes of the files listed before that mark, and the
last bytes of the newest one, which differ between any two files. It opens no other file. Readers of the folder skip
names that start with a dot. This module imports no torch, and pyarrow only inside the functions that write or read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from winnow import ranks
from winnow.background import BackgroundWork
from winnow.errors import DataError, RunFolderError, near_miss
from winnow.records import Group
from winnow.state.disk import check_kind, draft_of, errors_as, opened, replace_file, sync
from winnow.state.foreign import file_of, no_run, open_log
from winnow.state.foreign_log import steps_in_words
from winnow.state.log import LineLog, Mark, encode, lost, mark_of, refusals
from winnow.state.manifest import MANIFEST, parse, read

if TYPE_CHECKING:
    import pyarrow as pa

    from winnow.state.rollout_columns import Row


ROLLOUTS = "rollouts"
SUFFIX = ".parquet"
TOKENS_AT_ONCE = 2**21  # of prompts and completions: about 25 MB of numbers and text, 60 with a value model
BYTES_AT_ONCE = 2**26  # of texts: answers and metadata (tests of a program, say) may be larger than all tokens

_NAME = re.compile(r"step-(\d{6,15})\.parquet")
INDEX = f"{ROLLOUTS}/.index.jsonl"
Kept = Literal["all", "kept", "none"]
_NAMED = 3  # most files in one message


def path_of(folder: Path, step: int) -> Path:
    """The file of a step in the folder of rollouts."""
    return folder / f"step-{step:06d}.parquet"


def files_by_step(folder: Path) -> dict[int, Path]:
    """The files in a folder of rollouts, in step order; none without a folder. Reads names only."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    steps = {step: folder / name for name in names if (step := _step_of(name)) is not None}
    return dict(sorted(steps.items()))


def _step_of(name: str) -> int | None:
    """The step in a file's name; None for a name that `path_of` does not produce, such as one with more zeros."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match and path_of(Path(), int(match[1])).name == name else None


def write_draft(path: Path, step: int, seed: int, rows: Iterable[Row], *, only_kept: bool) -> Mark:
    """Write a step's rows to the draft of the file, and return the mark of its end.

    Raises OSError, and leaves no draft then.
    """
    import pyarrow.parquet as pq

    from winnow.state.rollout_columns import PARQUET, SCHEMA, table

    draft = draft_of(path)
    check_kind(path.parent, "a folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft.unlink(missing_ok=True)
    with opened(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL) as descriptor:
        sink = _Sink(descriptor)
        file = io.BufferedWriter(sink, 2**16)
        writer = pq.ParquetWriter(file, SCHEMA, **PARQUET)
        try:
            for some in _at_once(rows):
                writer.write_table(table(step, seed, some, only_kept=only_kept))
            writer.close()
            file.close()
            return mark_of(descriptor)
        except BaseException:
            sink.discard = True
            with contextlib.suppress(Exception):
                writer.close()
                file.close()
            draft.unlink(missing_ok=True)
            raise


class _Sink(io.RawIOBase):
    """A descriptor that discards writes on request: closing a Parquet file after an error would write its footer."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.discard = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(data) if self.discard else os.write(self._descriptor, data)


def _at_once(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows in parts that each fit into a row group."""
    some: list[Row] = []
    tokens = size = 0
    for row in rows:
        own = len(row.prompt.tokens) + len(row.rollout.tokens)
        if some and (tokens + own > TOKENS_AT_ONCE or size + row.text_bytes > BYTES_AT_ONCE):
            yield some
            some, tokens, size = [], 0, 0
        some.append(row)
        tokens += own
        size += row.text_bytes
    if some:
        yield some


def files_in(run: Path) -> dict[int, Path]:
    """The files of rollouts of a run, in step order: those of winnow's folder, or of the log of another trainer.

    Raises DataError if the folder cannot be read, or such a log is damaged.
    """
    log = open_log(run)
    if log is not None:
        return log.files()
    remedy = "make the folder readable, or name another run"
    with errors_as(DataError, f"cannot read {run / ROLLOUTS}", remedy, code="data.unreadable"):
        return files_by_step(run / ROLLOUTS)


def files_of(path: Path, step: int | None = None) -> list[Path]:
    """The files behind a run folder, its folder of rollouts, or one of these files; those of one step when given.

    Raises DataError if there are none.
    """
    log = open_log(path)  # raises for a file of settings, too
    if not path.is_dir():
        return [path]
    files = files_in(path) or files_by_step(path)
    if log is not None and (not files or (step is not None and step not in files)):
        raise log.no_rollouts(step if files else None)
    if not files and not (path / MANIFEST).exists() and path.name != ROLLOUTS:
        raise no_run(path)
    if not files:
        raise no_rollouts(path)
    if step is not None and step not in files:
        raise DataError(
            f"{path} contains no rollouts of step {step}: it contains those of {steps_in_words(list(files))} (the keys "
            f"log.every and log.rollouts decide which steps are logged)",
            remedy="name another step",
            code="data.missing",
        )
    return list(files.values()) if step is None else [files[step]]


def logs_none(run: Path) -> bool:
    """Whether the configuration of a run of winnow has log.rollouts = "none"; False if it cannot be read."""
    path = run / MANIFEST
    try:
        data = parse(read(path)[1], path) or {}
        return bool(data["config"]["log"]["rollouts"] == "none")
    except (OSError, RunFolderError, KeyError, TypeError):  # a manifest may contain anything
        return False


def no_rollouts(path: Path) -> DataError:
    """The error about a run, or its folder of rollouts, without any."""
    if logs_none(path if path.name != ROLLOUTS else path.parent):
        return DataError(
            f'{path} contains no rollouts: the run has log.rollouts = "none"',
            remedy='train with log.rollouts = "all" (or "kept"); `winnow plot` and `winnow report` show its metrics',
            key="log.rollouts",
            code="data.missing",
        )
    return DataError(
        f"{path} contains no rollouts: no step is finished yet, or none is logged (the keys log.rollouts and "
        f"log.every)",
        remedy=f"wait for the first step, or name another run folder, its folder {ROLLOUTS!r}, or a file of it",
        code="data.missing",
    )


class StepFile:
    """An open file of rollouts, or one of another trainer, which is read whole. Raises DataError for any other."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        from winnow.state.rollout_columns import check_schema

        self.path = path
        with self._named():
            check_kind(path, "a file", follow=True)  # opening a pipe would wait for its writer
            path.open("rb").close()  # its OSError has a shorter reason than pyarrow's
        found = file_of(path)
        self._whole = None if found is None else found[0].table(found[1])
        if self._whole is not None:
            sizes = [len(self._whole)]
        else:
            with self._named():
                self._file = pq.ParquetFile(path, page_checksum_verification=True)
                check_schema(self._file.schema_arrow)
            sizes = [self._file.metadata.row_group(part).num_rows for part in range(self._file.num_row_groups)]
        # (first row, row after the last) of each row group, which is read as a whole
        self.parts = list(itertools.pairwise(itertools.accumulate(sizes, initial=0)))
        self._read: tuple[Any, pa.Table | None] = None, None  # the row group that was read last

    def rows(self, first: int, end: int, columns: Collection[str] | None = None) -> list[dict[str, Any]]:
        """The rows from `first` to before `end`, with these columns, or all. Raises DataError."""
        from winnow.state.rollout_columns import records

        rows: list[dict[str, Any]] = []
        for part, (start, stop) in enumerate(self.parts):
            if start < end and stop > first:
                with self._named():
                    some = self._table(part, columns).slice(max(first - start, 0), min(end, stop) - max(first, start))
                    rows += records(some)
        step = _step_of(self.path.name)
        for row in rows:
            if step is not None and row.get("step", step) != step:
                raise DataError(
                    f"{self.path}: contains rollouts of step {row['step']}",
                    remedy="give the file its earlier name back",
                    code="data.malformed",
                )
        return rows

    def _table(self, part: int, columns: Collection[str] | None) -> pa.Table:
        """A row group. The last one stays in memory, as its rows are often requested one group after the other."""
        from winnow.state.rollout_columns import SCHEMA

        for name in columns or ():
            if name not in SCHEMA.names:
                raise DataError(
                    f"rollouts have no column {name!r}", remedy=near_miss(name, SCHEMA.names), code="data.missing"
                )
        names = [name for name in SCHEMA.names if columns is None or name in (*columns, "surrogates")]
        if self._whole is not None:
            return self._whole.select(names)
        if self._read[0] != (part, names):
            self._read = None, None
            read = self._file.read_row_group(part, columns=names, use_threads=False)
            self._read = (part, names), read.select(names)
        return self._read[1]

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        wrong = (ValueError, TypeError, KeyError, OverflowError)  # what pyarrow raises, too
        unread = errors_as(DataError, f"cannot read {self.path}", "name a run's rollouts", code="data.unreadable")
        of_run = _step_of(self.path.name) is not None
        remedy = "put the file back as it was, or remove it" if of_run else "name a run folder or a file of rollouts"
        problem = f"{self.path}: not rollouts as a run logs them"
        with unread, errors_as(DataError, problem, remedy, code="data.malformed", of=wrong):
            yield


def count(path: Path) -> int:
    """The number of rollouts in a file, from its footer. Raises DataError."""
    return StepFile(path).parts[-1][1]


class RolloutLog:
    """Writes every `every`-th step, in a thread while the policy is updated.

    `rollouts` is "all", "kept" (the others without texts and tokens) or "none".
    """

    def __init__(self, run: Path, *, seed: int, mark: Mark | None, rollouts: Kept, every: int) -> None:
        self.path = self._folder = run / ROLLOUTS
        self._index = LineLog(run / INDEX, mark)
        self._seed, self._rollouts, self._every = seed, rollouts, every
        self._unsynced: list[Path] = []
        self._draft: tuple[Path, BackgroundWork[Mark]] | None = None  # the file of the step that was begun

    def begin(self, step: int, groups: Sequence[Group], weights: Mapping[tuple[int, int], float]) -> None:
        """Start to write the draft of a step. The keys of `weights` are `TrainingSequence.key`."""
        self.discard()
        if self._rollouts == "none" or step % self._every or not any(group.rollouts for group in groups):
            return
        if ranks.is_writer():
            path, only_kept = path_of(self._folder, step), self._rollouts == "kept"

            def write() -> Mark:
                return write_draft(path, step, self._seed, _rows(groups, weights), only_kept=only_kept)

            work = BackgroundWork(write, name="winnow-log")
            self._draft = path, work
            work.start()

    def finish(self, step: int) -> None:
        """Wait for the draft of a step, give it its name, and list it in the index.

        Raises ValueError for a group that is not filled up to its advantages, RunFolderError where writing fails.
        """
        if self._draft is None:
            return
        path, work = self._draft
        with refusals(path):
            mark = work.outcome.result()
            self._unsynced.append(path)  # before the rename: a signal after it must not leave a file never synced
            try:
                draft_of(path).replace(path)
            except FileNotFoundError:  # the folder was moved away during the update
                mark = work.function()
                draft_of(path).replace(path)
        self._draft = None
        try:
            self._index.append(step, _line(step, mark))
        except Exception:
            with contextlib.suppress(OSError):
                path.unlink()
            raise

    def discard(self) -> None:
        """Wait for a draft whose step does not end, and remove it."""
        if self._draft is not None:
            path, work = self._draft
            work.wait()
            self._draft = None
            with contextlib.suppress(OSError):
                draft_of(path).unlink(missing_ok=True)

    def lost(self) -> str | None:
        """The files that are missing or changed since the index was marked, in words; None without any.

        Files are compared by their sizes, and the newest also by its last bytes.

        Raises RunFolderError if the folder or a file is something else, DataError for a damaged index.
        """
        with refusals(self._folder):
            check_kind(self._folder, "a folder")
        loss = self._index.lost()
        if loss is not None:
            return f"{self._index.path.name}: {loss}"
        files = [
            (path_of(self._folder, row["step"]), Mark(row["bytes"], row["tail_sha256"]))
            for _, row in self._index.marked_rows()
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
        self.discard()
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
        self.discard()
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
