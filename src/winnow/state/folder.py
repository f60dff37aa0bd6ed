"""A run's folder: one run, one process that writes at a time, and no files of other programs.

    runs/arithmetic/
      manifest.json     configuration, versions, threads, platform; the changes of each resume
      metrics.jsonl     one row per step; see logbook.py
      decisions.jsonl   one row per decision about the sizes of the steps, with plan.use = "auto"; see decisions.py
      rollouts/         one file per step; see rollout_files.py
      checkpoints/      step-000010/ ...; see checkpoint.py
      answers/          of an environment, with environment.recorded; see training/answers.py
      .lock             held with flock while a process writes here

This module imports no torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from winnow import ranks
from winnow.errors import RunFolderError, resumable
from winnow.state.disk import check_kind, draft_of, errors_as, kind, open_file, write_json
from winnow.state.log import METRICS
from winnow.state.manifest import FORMAT, MANIFEST, parse
from winnow.state.rollout_files import ROLLOUTS, files_by_step

FOLDER = "checkpoints"
ANSWERS = "answers"  # a new run may begin with the answers of another one
SWEEP = "sweep.json"  # in a folder of runs that one sweep launches; see winnow_lab/sweep_folder.py
# In a checkpoint, as safetensors: moments, and trained tensors that the model folder does not contain. vLLM would read
# every *.safetensors of the folder as weights of the model.
TENSORS = "trainer.tensors"
_NAME = re.compile(r"step-(\d+)")
LOCK = ".lock"
_DONE = b'"budget/rollouts"'  # in the row of metrics of every finished step, and in no other row


def path_of(run: Path, step: int) -> Path:
    """The path of the checkpoint after `step` steps."""
    return run / FOLDER / f"step-{step:06d}"


def is_checkpoint_path(path: Path) -> bool:
    """Whether a path is named like a checkpoint of a run."""
    return path.parent.name == FOLDER and _NAME.fullmatch(path.name) is not None


def find(run: Path) -> list[tuple[int, Path]]:
    """(step, path) of everything that is named like a checkpoint of a run, whole or not, oldest first.

    Raises OSError if the folder of the checkpoints cannot be read.
    """
    folder = run / FOLDER
    if kind(folder, follow=True) is None:
        return []
    matches = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted((int(match[1]), path) for match, path in matches if match)


def paths(run: Path) -> list[Path]:
    """The paths of `find`; none where the folder of the checkpoints cannot be read."""
    try:
        return [path for _, path in find(run)]
    except OSError:
        return []


class Lock:
    """An exclusive flock on a file that names its holder. The kernel releases it when the process exits."""

    def __init__(self, descriptor: int | None) -> None:
        """`descriptor` is of the locked file; None where another process holds the lock for this one."""
        self._descriptor = descriptor
        # A forked verify worker shares the open file. Without this, it would keep the lock after the trainer's end.
        os.register_at_fork(after_in_child=self.release)

    @classmethod
    def take(cls, path: Path) -> Lock:
        """Lock `path`, creating it. Raises RunFolderError, naming the holder, where it is locked already."""
        descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 256, 0).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            if not isinstance(error, BlockingIOError):
                raise
            raise RunFolderError(
                f"{path.parent} is in use by {holder}",
                remedy="wait until it exits, or choose another folder",
                code="run_folder.locked",
            ) from None
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        except OSError:  # a full disk: release the lock, so that this process can try again
            os.close(descriptor)
            raise
        return cls(descriptor)

    def release(self) -> None:
        """Close the file. In the process that took the lock, this releases it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@dataclass(frozen=True)
class LockedFolder:
    """A folder that only this process may write to, until `close` or the end of the process."""

    path: Path
    lock: Lock

    def close(self) -> None:
        """Release the folder for other processes."""
        self.lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class RunFolder(LockedFolder):
    """The locked folder of a run."""

    before: Mapping[str, Any]  # the manifest of a resumed run; empty for a new one

    @classmethod
    def open(cls, path: Path | str, *, resume: bool) -> RunFolder:
        """Open a new folder, or with `resume` that of a winnow run. Only the lock is written here; see `record`.

        A folder counts as new until a launch has finished its first step.

        Raises RunFolderError for a folder that is not a winnow run, is in use, contains a run already (without
        `resume`), contains no run (with `resume`), or cannot be written. The writing rank opens it for all ranks.
        """
        with ranks.announced("opening the run folder"):
            folder = cls._open(path, resume=resume) if ranks.is_writer() else None
        before = ranks.gather_from_all(folder.before if folder else {})[0]
        return folder or cls(Path(path), Lock(None), before)

    @classmethod
    def _open(cls, path: Path | str, *, resume: bool) -> RunFolder:
        path = Path(path)
        with _refusals(path), contextlib.ExitStack() as on_failure:
            if not path.is_dir() or _read_manifest(path) is None:
                refuse_foreign(path, "run", MANIFEST)
            if resume and _read_manifest(path) is None:
                raise RunFolderError(
                    f"there is no run to resume in {path}", remedy="start a new one", code="run_folder.missing"
                )
            path.mkdir(parents=True, exist_ok=True)
            lock = Lock.take(path / LOCK)
            on_failure.callback(lock.release)
            before = _read_manifest(path) or {}
            if before and not resume:
                check_free(path)
            on_failure.pop_all()
        return cls(path, lock, before if resume else {})

    def record(self, manifest: Mapping[str, Any], changes: Sequence[Any] = ()) -> None:
        """Write `manifest` (JSON data), with the `changes` of this resume after those of earlier ones.

        Raises RunFolderError if it cannot be written.
        """
        changed = [*self.before.get("changes", []), *changes]
        with _refusals(self.path):
            write_json(self.path / MANIFEST, {"winnow_run": FORMAT, "changes": changed, **manifest})


def check_free(path: Path) -> None:
    """Raise RunFolderError where a new run would overwrite the steps of another."""
    if has_finished_step(path):
        checkpoints = paths(path)
        files = sorted(entry.name for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))
        newest = f"newest checkpoint {checkpoints[-1].name}" if checkpoints else "no checkpoint"
        error = RunFolderError(
            f"{path} already contains a run ({', '.join(files)}; {newest})",
            remedy="resume it, or choose another folder with the key output",
            key="output",
            code="run_folder.taken",
        )
        raise resumable(error)


def refuse_foreign(path: Path, what: str, manifest: str) -> None:
    """Raise RunFolderError for a file, and for a folder with contents other than the lock and a draft of `manifest`."""
    if not path.exists():
        return
    ours = {LOCK, ANSWERS, draft_of(path / manifest).name}
    others = sorted(entry.name for entry in path.iterdir() if entry.name not in ours) if path.is_dir() else []
    if others or not path.is_dir():
        some = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
        raise RunFolderError(
            f"{path} is not empty and not a {what} of winnow ({some})" if others else f"{path} is not a folder",
            remedy="choose another with the key output",
            key="output",
            code="run_folder.foreign",
        )


def _read_manifest(path: Path) -> dict[str, Any] | None:
    """The manifest of a winnow run, or None where winnow wrote none. Raises RunFolderError for a later format."""
    try:
        check_kind(path / MANIFEST, "a file", follow=True)
        text = (path / MANIFEST).read_bytes()
    except FileNotFoundError:
        return None
    return parse(text, path / MANIFEST)


def has_finished_step(path: Path) -> bool:
    """Whether the run in a folder has finished a step. An evaluation before the first step, or the rollouts of the
    first step without its metrics, do not count.
    """
    metrics, rollouts = path / METRICS, path / ROLLOUTS
    strange = (metrics.exists() and not metrics.is_file()) or (rollouts.exists() and not rollouts.is_dir())
    # Something strange in the place of a log counts, as it cannot be read to decide
    if paths(path) or strange or any(step > 0 for step in files_by_step(rollouts)):
        return True
    if not metrics.exists():
        return False
    with metrics.open("rb") as lines:
        return any(_DONE in line and line.endswith(b"\n") for line in lines)


def _refusals(path: Path) -> contextlib.AbstractContextManager[None]:
    problem = f"cannot use the run folder {path}"
    return errors_as(
        RunFolderError, problem, "choose another with the key output", key="output", code="run_folder.unwritable"
    )
